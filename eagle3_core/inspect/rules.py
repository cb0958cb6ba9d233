"""The lint: what trainers and engines let pass, as one registry of rules.

A rule says whom it hurts (``consumers``, None for everyone), why it matters, how
to mend it and where it was seen in public. Its ``check`` gives what it found, for
one consumer. Adding a rule is one function and one entry of ``RULES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from eagle3_core.errors import Eagle3Error, suggest
from eagle3_core.inspect.facts import Facts, Serving
from eagle3_core.specs.target import TargetSpec

if TYPE_CHECKING:
    from eagle3_core.corpus.counts import TokenCounts

Severity = Literal["error", "warning"]
CONSUMERS = ("sglang", "vllm", "specforge", "speculators", "modelopt", "llama.cpp", "eagle")
ENGINES = ("sglang", "vllm")
MASK_TRAINERS = ("specforge", "speculators", "eagle")
"""They slice the target's logits by t2d, and so need ascending ids and both tensors."""
HOME = {"specforge": ("specforge", *ENGINES), "eagle": ("eagle", *ENGINES), "speculators": ("speculators", "vllm"),
        "modelopt": ("modelopt", *ENGINES), "llama.cpp": ("llama.cpp",), "vllm": ("vllm",),
        "angelslim": ("specforge", *ENGINES), "eagle3": ("vllm", "sglang"), "sglang-map": ()}
"""Who is meant to read what a project writes, judged where nobody is named."""
Hit = tuple[str, str]
"""(where, what)."""


@dataclass(frozen=True)
class Finding:
    """One message: what and where, why it matters and to whom, how to mend it, and its public issues."""

    rule: str
    severity: Severity
    where: str
    what: str
    why: str
    fix: str
    links: tuple[str, ...]
    consumers: tuple[str, ...]
    """Of those judged, the ones it hurts."""


@dataclass(frozen=True, eq=False)
class Subject:
    """What is judged: the facts, and what the caller knows beside them."""

    facts: Facts
    consumer: str
    counts: TokenCounts | None = None
    tp: int = 1
    serving: tuple[Serving, ...] = ()

    @property
    def target(self) -> TargetSpec | None:
        return self.facts.target


@dataclass(frozen=True)
class Rule:
    id: str
    severity: Severity
    check: Callable[[Subject], Iterable[Hit]]
    why: str
    fix: str
    consumers: tuple[str, ...] | None = None
    links: tuple[str, ...] = ()


def check_consumer(name: str) -> str:
    """Raises Eagle3Error with the nearest known name."""
    if name not in CONSUMERS:
        raise Eagle3Error("--for", found=repr(name), expected=", ".join(CONSUMERS), fix=suggest(name, CONSUMERS))
    return name


def judged(facts: Facts) -> tuple[str, ...]:
    """Who is meant to read this, where nobody is named."""
    return HOME.get(facts.project, ENGINES)


def lint(
    facts: Facts, consumer: str | None = None, *, counts: TokenCounts | None = None, tp: int = 1,
    serving: Serving | None = None,
) -> list[Finding]:
    """Findings, errors first, each once with all whom it hurts.

    ``consumer`` None judges by those that the layout is written for. ``serving``
    adds launch settings to those found beside the checkpoint. Raises Eagle3Error
    for an unknown consumer.
    """
    from eagle3_core.inspect.rule_list import RULES

    names = judged(facts) if consumer is None else (check_consumer(consumer),)
    settings = (*facts.serving, serving) if serving is not None else facts.serving
    found: dict[tuple[str, str, str], Finding] = {}
    for name in names or ("",):
        subject = Subject(facts, name, counts, tp, settings)
        for rule in RULES:
            if rule.consumers is not None and name not in rule.consumers:
                continue
            for where, what in rule.check(subject):
                key = (rule.id, where, what)
                known = found.get(key)
                users = (*known.consumers, name) if known else (name,)
                found[key] = replace(known, consumers=users) if known else Finding(
                    rule.id, rule.severity, where, what, rule.why, rule.fix, rule.links, users)
    return sorted(found.values(), key=lambda f: f.severity != "error")


@dataclass(frozen=True)
class Loadable:
    """Could a consumer take this as it is: no errors for it."""

    consumer: str
    loads: bool
    errors: int
    warnings: int
    reason: str


def who_could_load(facts: Facts) -> Iterator[Loadable]:
    """One row a consumer, by its own lint."""
    for name in CONSUMERS:
        if name == "llama.cpp" and facts.container != "gguf":
            yield Loadable(name, False, 0, 0, "needs its own converter first: it reads GGUF")
            continue
        if name != "llama.cpp" and facts.container == "gguf":
            yield Loadable(name, False, 0, 0, "does not read GGUF")
            continue
        findings = lint(facts, name)
        errors = [f for f in findings if f.severity == "error"]
        yield Loadable(name, not errors, len(errors), len(findings) - len(errors), errors[0].what if errors else "")
