"""What is on the screen, as one frozen value and as a query string.

    ?target=kimi-k2.5&counts=qwen3&latency=h200&draft_tp=8&decode=90&size=32000

The keys are the command line's option names; a value equal to the default is left
out. Links are typed and mended by people, so a bad value becomes the default and a
notice, never an error. ``size`` is left out while the recommendation is followed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from eagle3_core.errors import Eagle3Error
from eagle3_core.vocab.ranking import STRATEGIES

DTYPES = ("bfloat16", "float16", "float32", "fp8", "int8")
LONGEST = 200


@dataclass(frozen=True)
class AppState:
    """Names of artifacts, not paths: the library knows where they lie. ``auto`` counts are those that fit."""

    target: str = "qwen3-8b"
    counts: str = "auto"
    latency: str = "h200"
    acceptance: str = "0.8"
    k: int = 5
    draft_tp: int = 1
    target_tp: int = 1
    batch: int = 1
    dtype: str = "bfloat16"
    locked: int | None = None
    decode: float | None = None
    """Tokens a second that the target reaches alone; None takes the latency source's."""
    ranking: str = "pooled"
    size: int | None = None


DEFAULT = AppState()


@dataclass(frozen=True)
class Example:
    label: str
    hint: str
    state: AppState


EXAMPLES: dict[str, Example] = {
    "qwen": Example("Qwen3-8B", "real token counts, modelled H200", AppState()),
    "kimi": Example(
        "Kimi-K2.5", "draft TP 8, 90 tokens/s alone; another tokenizer's counts stand in",
        AppState(target="kimi-k2.5", draft_tp=8, target_tp=8, decode=90.0)),
    "kimi15": Example(
        "Kimi-K2.5 at 15 %", "the same, with 15 % of drafts accepted",
        AppState(target="kimi-k2.5", draft_tp=8, target_tp=8, decode=90.0, acceptance="0.15")),
    "smollm": Example(
        "SmolLM2-135M", "counts and latency measured on a CPU",
        AppState(target="smollm2-135m", latency="smollm2-135m.cpu", dtype="float32")),
}


def _name(value: str) -> str:
    if not value or len(value) > LONGEST or not value.isprintable():
        raise ValueError(f"a name of at most {LONGEST} characters")
    return value


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        plain = value.replace(",", "").replace("_", "").strip()
        if not plain.isascii() or not plain.isdigit() or len(plain) > 9 or not low <= int(plain) <= high:
            raise ValueError(f"a whole number from {low:,} to {high:,}")
        return int(plain)
    return read


def _rate(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not 0.001 <= number <= 1e6:
        raise ValueError("tokens a second above 0")
    return number


def _one_of(known: Sequence[str]) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in known:
            raise ValueError("one of " + ", ".join(known))
        return value
    return read


READ: dict[str, Callable[[str], object]] = {
    "target": _name, "counts": _name, "latency": _name, "acceptance": _name,
    "k": _whole(1, 32), "draft_tp": _whole(1, 64), "target_tp": _whole(1, 64), "batch": _whole(1, 4096),
    "dtype": _one_of(DTYPES), "locked": _whole(64, 1 << 20), "decode": _rate, "ranking": _one_of(
        [name for name in STRATEGIES if name != "weights"]), "size": _whole(64, 1 << 20),
}


def shown(value: object, limit: int = 60) -> str:
    """Hostile text for a notice: one line, escaped, cut."""
    text = "".join(ch if ch.isprintable() else ch.encode("unicode_escape", "backslashreplace").decode()
                   for ch in str(value)[: limit + 1])
    return text[:limit] + "\u2026" if len(text) > limit else text


def parse_query(query: str | Mapping[str, object]) -> tuple[AppState, tuple[str, ...]]:
    """State and notices. Unknown keys are ignored: other programs add theirs."""
    if isinstance(query, str):
        try:
            pairs = parse_qsl(query.lstrip("?")[:8192], max_num_fields=64)
        except ValueError:
            return DEFAULT, ("The link could not be read; the defaults are shown.",)
    else:
        pairs = [(key, value[0] if isinstance(value, list) else str(value)) for key, value in query.items() if value]
    values: dict[str, object] = {}
    notices = []
    for key, text in pairs:
        if key not in READ:
            continue
        try:
            values[key] = READ[key](text)
        except ValueError as error:
            notices.append(f"The link's {key} is {shown(text)!r}; expected {error}. The default is used.")
    return AppState(**values), tuple(notices)  # type: ignore[arg-type]


def to_query(state: AppState, *, size: bool = True) -> str:
    """The shortest query that gives this state back."""
    pairs = []
    for field in dataclasses.fields(AppState):
        value = getattr(state, field.name)
        if value == getattr(DEFAULT, field.name) or (field.name == "size" and not size):
            continue
        pairs.append((field.name, f"{value:g}" if isinstance(value, float) else str(value)))
    return urlencode(pairs)


def changed(state: AppState, **values: object) -> AppState:
    """The state after one control moved. Another target drops what belonged to the old one."""
    if "target" in values and values["target"] != state.target:
        values = {"counts": "auto", "locked": None, "decode": None, "size": None, **values}
        if state.latency.endswith(".cpu") or "/" in state.latency or state.latency.startswith("upload"):
            values = {"latency": DEFAULT.latency, "dtype": DEFAULT.dtype, **values}
    return dataclasses.replace(state, **values)  # type: ignore[arg-type]


def typed(state: AppState, key: str, text: str) -> AppState:
    """A text field's value. Empty gives the default. Raises Eagle3Error naming the field."""
    if not text.strip():
        return changed(state, **{key: getattr(DEFAULT, key)})
    try:
        return changed(state, **{key: READ[key](text.strip())})
    except ValueError as error:
        raise Eagle3Error(key.replace("_", " "), found=repr(shown(text)), expected=str(error)) from None
