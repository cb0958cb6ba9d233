"""Write ``chats.jsonl``: 240 short conversations made for this project, the same on every run.

English, code, mathematics, Chinese, Spanish and tool calls, forty each. Answers are
computed or written here; nothing is taken from a corpus. Every line has ``messages``,
``source`` (the domain) and, for tool calls, ``tools``.

    python data_samples/make_chats.py
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_name("chats.jsonl")
PER_DOMAIN = 40
Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


PLACES = ["the kitchen", "a small balcony", "the office", "a rented flat", "the garage", "a campsite", "the library",
          "a workshop"]
HABITS = [
    ("sleep better", ["keep the same bedtime", "leave the phone in another room", "dim the lights an hour before",
                      "avoid coffee after lunch"]),
    ("read more", ["carry a thin book", "stop at the middle of a chapter", "join a group that meets monthly",
                   "read ten pages before any screen"]),
    ("save electricity", ["switch off the power strip at night", "wash at thirty degrees", "lower the thermostat by a degree",
                          "replace the last old bulbs"]),
    ("grow herbs", ["start with mint and basil", "water in the morning", "turn the pots every week",
                    "cut above a pair of leaves"]),
    ("learn to cook", ["master one soup first", "taste while you go", "sharpen the knife", "write down what worked"]),
]
EXPLAINED = [
    ("why the sky is blue", "Sunlight is scattered by the molecules of the air, and short wavelengths are scattered most. "
     "Blue light therefore reaches the eye from every direction, while red light mostly passes straight through."),
    ("how a heat pump works", "A heat pump moves heat instead of making it. A fluid evaporates where it is cold, is "
     "compressed so that it gets hot, and condenses where the heat is wanted. Three units of heat for one of electricity "
     "are common."),
    ("what a hash table is", "A hash table turns a key into a number and uses it as the place to look. Reading and writing "
     "take about the same short time however many entries there are, as long as keys spread evenly."),
    ("why bread rises", "Yeast eats sugar and gives off carbon dioxide. Gluten makes the dough elastic, so it holds the gas "
     "in small bubbles, and the oven sets the structure before they escape."),
    ("what speculative decoding does", "A small model proposes several tokens and the large one checks them in a single pass. "
     "Accepted tokens cost almost nothing, and rejected ones are replaced, so the output is unchanged."),
]


def english(rng: random.Random, index: int) -> dict[str, Any]:
    if index % 2:
        goal, tips = HABITS[index % len(HABITS)]
        place = rng.choice(PLACES)
        chosen = rng.sample(tips, 3)
        answer = f"Here are three things that help to {goal} in {place}:\n\n"
        answer += "\n".join(f"{n}. {tip[0].upper()}{tip[1:]}." for n, tip in enumerate(chosen, 1))
        follow = rng.choice(["Which one should I start with?", "I have only ten minutes a day. What then?"])
        return {"messages": [user(f"How can I {goal} in {place}?"), said(answer), user(follow),
                             said(f"Start with this: {chosen[0]}. It costs the least effort, and you will notice the "
                                  f"difference within {rng.choice(['a week', 'two weeks', 'a month'])}.")]}
    topic, text = EXPLAINED[index % len(EXPLAINED)]
    ask = rng.choice(["Explain {} in a few sentences.", "Can you tell me {}?", "I never understood {}. Help me, please."])
    return {"messages": [{"role": "system", "content": "You answer briefly and plainly."}, user(ask.format(topic)),
                         said(text)]}


FUNCTIONS = [
    ("reverses the words of a sentence", "reverse_words", "text: str", "str", "return \" \".join(reversed(text.split()))"),
    ("counts how often each item occurs", "tally", "items: list[str]", "dict[str, int]",
     "counts: dict[str, int] = {}\n    for item in items:\n        counts[item] = counts.get(item, 0) + 1\n    return counts"),
    ("returns the n-th Fibonacci number", "fibonacci", "n: int", "int",
     "a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a"),
    ("checks whether brackets are balanced", "balanced", "text: str", "bool",
     "pairs = {\")\": \"(\", \"]\": \"[\", \"}\": \"{\"}\n    stack: list[str] = []\n    for ch in text:\n        if ch in "
     "pairs.values():\n            stack.append(ch)\n        elif ch in pairs:\n            if not stack or stack.pop() != "
     "pairs[ch]:\n                return False\n    return not stack"),
    ("flattens a list of lists", "flatten", "rows: list[list[int]]", "list[int]", "return [x for row in rows for x in row]"),
    ("splits a list into chunks", "chunks", "items: list[int], size: int", "list[list[int]]",
     "return [items[i : i + size] for i in range(0, len(items), size)]"),
    ("finds the longest common prefix", "common_prefix", "words: list[str]", "str",
     "if not words:\n        return \"\"\n    shortest = min(words, key=len)\n    for i, ch in enumerate(shortest):\n        "
     "if any(word[i] != ch for word in words):\n            return shortest[:i]\n    return shortest"),
]


def code(rng: random.Random, index: int) -> dict[str, Any]:
    what, name, arguments, result, body = FUNCTIONS[index % len(FUNCTIONS)]
    if index % 3 == 2:
        table, column = rng.choice([("orders", "amount"), ("visits", "seconds"), ("runs", "tokens")])
        limit = rng.choice([5, 10, 20])
        query = (f"SELECT customer_id, SUM({column}) AS total\nFROM {table}\nWHERE created_at >= '2026-01-01'\n"
                 f"GROUP BY customer_id\nORDER BY total DESC\nLIMIT {limit};")
        return {"messages": [user(f"Write SQL for the {limit} customers with the largest total {column} in {table} this year."),
                             said(f"```sql\n{query}\n```\n\nAdd an index on `created_at` if the table is large.")]}
    source = f"def {name}({arguments}) -> {result}:\n    \"\"\"{what[0].upper()}{what[1:]}.\"\"\"\n    {body}"
    messages = [user(f"Write a Python function that {what}."), said(f"```python\n{source}\n```")]
    if index % 2:
        messages += [user("Now show me a test for it."),
                     said(f"```python\nimport pytest\nfrom helpers import {name}\n\n\ndef test_{name}_handles_nothing() -> None:\n"
                          f"    assert not {name}({'[]' if 'list' in arguments else repr('') if 'str' in arguments else '0'}"
                          f"{', 2' if 'size' in arguments else ''})\n```")]
    return {"messages": messages}


def mathematics(rng: random.Random, index: int) -> dict[str, Any]:
    kind = index % 4
    if kind == 0:
        boxes, pencils, given = rng.randint(3, 19), rng.randint(6, 24), rng.randint(2, 17)
        total = boxes * pencils
        return {"messages": [user(f"A school buys {boxes} boxes of {pencils} pencils and gives {given} pencils away. How many "
                                  "are left?"),
                             said(f"There are {boxes} × {pencils} = {total} pencils. After giving {given} away, "
                                  f"{total} − {given} = {total - given} are left.\n\n**Answer: {total - given}**")]}
    if kind == 1:
        a, x, b = rng.randint(2, 12), rng.randint(-9, 15), rng.randint(1, 40)
        right = a * x + b
        return {"messages": [user(f"Solve {a}x + {b} = {right}."),
                             said(f"Subtract {b} from both sides: {a}x = {right - b}. Divide by {a}: x = {x}.\n\n"
                                  f"Check: {a} · {x} + {b} = {right}.")]}
    if kind == 2:
        price, percent = rng.randint(20, 480), rng.choice([5, 10, 15, 20, 25, 40])
        off = price * percent / 100
        return {"messages": [user(f"A coat costs {price} euros and is reduced by {percent} %. What is the new price?"),
                             said(f"{percent} % of {price} is {off:g}. The new price is {price} − {off:g} = "
                                  f"{price - off:g} euros.")]}
    n = rng.randint(8, 60)
    return {"messages": [user(f"What is the sum of the first {n} positive integers, and why?"),
                         said(f"Pair the smallest with the largest: each pair adds up to {n + 1}, and there are {n}/2 pairs. "
                              f"So the sum is $\\frac{{{n} \\cdot {n + 1}}}{{2}} = {n * (n + 1) // 2}$."),
                         user("And the sum of their squares?"),
                         said(f"$\\frac{{n(n+1)(2n+1)}}{{6}} = {n * (n + 1) * (2 * n + 1) // 6}$ for $n = {n}$.")]}


CHINESE = [
    ("怎样才能早起？", "先把睡觉的时间提前半小时，睡前不要看手机。闹钟放在够不着的地方，起床后马上喝一杯水、打开窗帘。坚持两周，身体就会习惯。"),
    ("请介绍一下西红柿炒鸡蛋的做法。", "准备三个鸡蛋和两个西红柿。鸡蛋打散，加一点盐，热油下锅炒熟盛出。西红柿切块炒出汁，放少许糖和盐，再把鸡蛋倒回去翻炒均匀即可。"),
    ("什么是光合作用？", "光合作用是植物利用阳光，把二氧化碳和水转化为糖并放出氧气的过程。它发生在叶绿体中，是地球上大部分生命的能量来源。"),
    ("第一次去北京，应该怎么安排三天的行程？", "第一天游览天安门和故宫，傍晚登景山看全景。第二天早起去长城，避开人流。第三天逛颐和园和胡同，晚上尝尝烤鸭。记得提前预约门票。"),
    ("如何写好一封求职信？", "开头说明应聘的职位，中间用两三个具体成果证明你的能力，结尾表达面谈的愿望。控制在一页以内，语气真诚，发送前检查错别字。"),
    ("为什么天空是蓝色的？", "阳光进入大气层后会被空气分子散射，波长短的蓝光散射得最厉害，所以我们从各个方向看到的都是蓝色的光。"),
    ("推测解码是什么意思？", "推测解码先用一个小模型一次提出几个词，再由大模型一次性检查。通过的词几乎不花时间，没通过的由大模型改正，因此结果和原来完全一样。"),
]
CHINESE_MORE = [("能不能说得再简单一点？", "好的。简单来说：{}"), ("谢谢！还有别的建议吗？", "不客气。再补充一点：循序渐进，不要急于求成。")]


def chinese(rng: random.Random, index: int) -> dict[str, Any]:
    if index % 5 == 4:
        apples, price, paid = rng.randint(3, 12), rng.randint(2, 9), 200
        return {"messages": [user(f"小明买了{apples}斤苹果，每斤{price}元，付了{paid}元，应找回多少钱？"),
                             said(f"苹果一共{apples}×{price}={apples * price}元，应找回{paid}−{apples * price}="
                                  f"{paid - apples * price}元。")]}
    question, answer = CHINESE[index % len(CHINESE)]
    messages = [user(question), said(answer)]
    if index % 2:
        more, reply = CHINESE_MORE[rng.randrange(2)]
        messages += [user(more), said(reply.format(answer.split("。")[0] + "。"))]
    return {"messages": messages}


SPANISH = [
    ("¿Cómo puedo aprender inglés más rápido?", "Practica un poco cada día: escucha un pódcast corto, repite las frases en voz "
     "alta y apunta cinco palabras nuevas. Lo más importante es la constancia, no las horas."),
    ("¿Qué es la inflación?", "La inflación es el aumento general de los precios durante un tiempo. Con el mismo dinero se "
     "compran menos cosas, así que el poder adquisitivo baja."),
    ("Dame una receta sencilla de tortilla de patatas.", "Fríe cuatro patatas en láminas a fuego lento con una cebolla. Escúrrelas, "
     "mézclalas con seis huevos batidos y sal, y cuaja la tortilla por ambos lados. Déjala reposar unos minutos."),
    ("¿Por qué vemos el arcoíris?", "La luz del sol se refracta y se refleja dentro de las gotas de agua. Cada color se desvía un "
     "ángulo distinto y por eso aparecen separados en el cielo."),
    ("Escribe un correo breve para pedir un día libre.", "Asunto: Día libre el viernes\n\nHola, Marta:\n\nQuisiera tomarme libre el "
     "próximo viernes por un asunto familiar. Dejaré terminado el informe antes.\n\nGracias y un saludo,\nLucía"),
    ("¿Cuál es la diferencia entre clima y tiempo?", "El tiempo es el estado de la atmósfera hoy; el clima es lo habitual en un "
     "lugar a lo largo de muchos años."),
]


def spanish(rng: random.Random, index: int) -> dict[str, Any]:
    question, answer = SPANISH[index % len(SPANISH)]
    if index % 4 == 3:
        hours, speed = rng.randint(2, 9), rng.choice([60, 80, 90, 110])
        return {"messages": [user(f"Un tren viaja {hours} horas a {speed} km/h. ¿Qué distancia recorre?"),
                             said(f"Recorre {hours} × {speed} = {hours * speed} kilómetros.")]}
    messages = [user(question), said(answer)]
    if index % 2:
        messages += [user("¿Puedes resumirlo en una frase?"), said(answer.split(".")[0].strip() + ".")]
    return {"messages": messages}


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Current weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "convert", "description": "Convert an amount between currencies",
        "parameters": {"type": "object", "properties": {
            "amount": {"type": "number"}, "source": {"type": "string"}, "target": {"type": "string"}},
            "required": ["amount", "source", "target"]}}},
]
CITIES = ["Lisbon", "Osaka", "Nairobi", "Montréal", "Tromsø", "Valparaíso", "Kraków", "Hanoi"]


def tools(rng: random.Random, index: int) -> dict[str, Any]:
    if index % 2:
        city, degrees = rng.choice(CITIES), rng.randint(-8, 34)
        sky = rng.choice(["clear", "light rain", "overcast", "windy"])
        question, name, arguments = f"Do I need a coat in {city} today?", "get_weather", {"city": city}
        result = {"celsius": degrees, "sky": sky}
        answer = f"It is {degrees} °C and {sky} in {city}. " + ("Take a warm coat." if degrees < 10 else
                                                             "A light jacket will do." if degrees < 20 else "No coat needed.")
    else:
        amount = rng.randint(10, 900)
        *pair, rate = rng.choice([("USD", "EUR", 0.92), ("EUR", "USD", 1.08), ("USD", "JPY", 156.3), ("USD", "GBP", 0.79)])
        question = f"How much is {amount} {pair[0]} in {pair[1]}?"
        name, arguments = "convert", {"amount": amount, "source": pair[0], "target": pair[1]}
        result = {"amount": round(amount * rate, 2), "rate": rate}
        answer = f"{amount} {pair[0]} is about {amount * rate:,.2f} {pair[1]} at a rate of {rate}."
    call = {"id": f"call_{index:03d}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tools": TOOLS, "messages": [
        user(question), {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "name": name, "content": json.dumps(result)}, said(answer)]}


DOMAINS: dict[str, Callable[[random.Random, int], dict[str, Any]]] = {
    "en": english, "code": code, "math": mathematics, "zh": chinese, "es": spanish, "tools": tools,
}


def conversations() -> Iterator[dict[str, Any]]:
    for name, make in DOMAINS.items():
        rng = random.Random(f"eagle3 chats {name}")
        for index in range(PER_DOMAIN):
            yield {"source": name, **make(rng, index)}


if __name__ == "__main__":
    OUT.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in conversations()), encoding="utf-8")
    print(f"wrote {OUT.name}")
