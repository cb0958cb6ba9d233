"""What servers and trainers report about acceptance, converted to conditional alpha_k and tau with the bonus token.

    vLLM            per-position rates r_k are unconditional (all earlier drafts accepted too), averages percent:
                    alpha_k = r_k / r_(k-1), tau = 1 + sum r_k
    SGLang          accept length holds the bonus token; accept rate is a fraction, (length - 1) / drafts a round;
                    spec_correct_drafts_histogram[n] counts rounds with n drafts kept: r_k = share with n >= k
    SpecForge       acc_k is teacher-forced and counts targets outside the draft vocabulary as wrong; it stands for
                    alpha_k. Its simulated length leaves the bonus token out
    speculators     full_acc_k is cumulative (steps 0..k all right) and blind to targets outside the draft
                    vocabulary, so alpha_k is full_acc_k / full_acc_(k-1) times held-out coverage

A source that gives a mean length alone gets the one alpha that, the same at every
position, yields it: tau = 1 + a + ... + a^K. It is then marked modelled.
Formats as written by SGLang 0.5.23, vLLM 0.32.0, SpecForge a6b6b023, speculators 0.9.0.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from eagle3_core import __version__
from eagle3_core.acceptance.events import is_event_file, read_scalars
from eagle3_core.acceptance.record import AcceptancePoint, AcceptanceRecord
from eagle3_core.errors import Eagle3Error
from eagle3_core.evidence import Evidence
from eagle3_core.files import read_bytes

Metrics = dict[str, Any]
AGREE = 0.02
"""Relative difference of two acceptance lengths that rounding in a log explains."""
_NUMBER = r"([0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"


@dataclass(frozen=True)
class Reported:
    """``rates``: unconditional r_1..r_K where known; else ``tau`` alone. ``rounds``: how many they rest on."""

    kind: str
    method: Literal["served", "training_log"]
    rates: tuple[float, ...] | None = None
    tau: float | None = None
    k: int | None = None
    rounds: float | None = None
    evidence: Evidence = "measured"
    notes: tuple[str, ...] = field(default=())


def read_reported(
    path: str | Path, *, draft_vocab: int | None, vocab_size: int | None = None, k: int | None = None,
    coverage: float | None = None,
) -> AcceptanceRecord:
    """One file to one record. Raises Eagle3Error when nothing in it is an acceptance figure, or D or K is needed."""
    path = Path(path)
    if draft_vocab is None:
        raise Eagle3Error("--size is missing", where=path, expected="the draft vocabulary D that was served or trained",
                          fix="no server or trainer reports it")
    found = sniff(path, coverage)
    alpha, notes, evidence = _alphas(found, k, path)
    low, high = _interval(alpha, found)
    tau = _tau(alpha)
    point = AcceptancePoint(
        draft_vocab=draft_vocab, alpha=alpha, alpha_low=low, alpha_high=high, tau=tau,
        tau_low=_tau(low), tau_high=_tau(high))
    return AcceptanceRecord(
        tool_version=__version__, created=datetime.now(UTC).isoformat(timespec="seconds"), target="as served",
        drafter="as served" if found.method == "served" else "in training", vocab_size=vocab_size or draft_vocab,
        trained_draft_vocab=draft_vocab, method=found.method, evidence=evidence, points=(point,),
        source=f"{found.kind}: {path.name}", notes=(*found.notes, *notes))


def sniff(path: Path, coverage: float | None = None) -> Reported:
    """What the file holds, by its content."""
    if is_event_file(path):
        return from_metrics(read_scalars(path), path, coverage)
    text = read_bytes(path, limit=1 << 30).decode("utf-8", "replace")
    for reader in READERS:
        found = reader(text, path, coverage)
        if found is not None:
            return found
    raise Eagle3Error("holds no acceptance figures that are known", where=path,
                      expected="SGLang or vLLM logs, Prometheus text, meta_info or benchmark JSON, training metrics")


def _alphas(found: Reported, k: int | None, path: Path) -> tuple[tuple[float, ...], tuple[str, ...], Evidence]:
    if found.rates is not None:
        return _conditional(found.rates), (), found.evidence
    depth = found.k or k
    if depth is None:
        raise Eagle3Error("gives a mean acceptance length only", where=path, found=f"{found.tau:g}",
                          expected="the draft length as well", fix="pass --k")
    assert found.tau is not None
    if not 1 <= found.tau <= depth + 1:
        raise Eagle3Error("acceptance length does not fit the draft length", where=path, found=f"{found.tau:g}",
                          expected=f"1 to {depth + 1} for K = {depth}")
    note = f"only the mean length {found.tau:.3f} is reported: the same alpha is taken at all {depth} positions"
    return (constant_alpha(found.tau, depth),) * depth, (note,), "modelled"


def constant_alpha(tau: float, k: int) -> float:
    """a with 1 + a + ... + a^K = tau, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**i for i in range(k + 1)) < tau:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _conditional(rates: Sequence[float]) -> tuple[float, ...]:
    """alpha_k = r_k / r_(k-1), r_0 = 1. After a rate of 0 nothing more was seen."""
    alpha, before = [], 1.0
    for rate in rates:
        if before <= 0:
            break
        alpha.append(min(rate / before, 1.0))
        before = rate
    return tuple(alpha)


def _tau(alpha: Sequence[float]) -> float:
    total = product = 1.0
    for a in alpha:
        product *= a
        total += product
    return total


def _interval(alpha: tuple[float, ...], found: Reported) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Wilson intervals where the number of rounds is known; else none, which equals the value itself."""
    if not found.rounds:
        return alpha, alpha
    low, high, n = [], [], found.rounds
    for a in alpha:
        z2 = 1.96**2
        count = max(n, 1.0)
        centre = (a + z2 / (2 * count)) / (1 + z2 / count)
        half = 1.96 * (a * (1 - a) / count + z2 / (4 * count**2)) ** 0.5 / (1 + z2 / count)
        low.append(min(max(centre - half, 0.0), a))
        high.append(max(min(centre + half, 1.0), a))
        n *= a
    return tuple(low), tuple(high)


# --- servers ---------------------------------------------------------------------------------------------------


_VLLM_LINE = re.compile(
    rf"SpecDecoding metrics: Mean acceptance length: {_NUMBER}.*?Accepted: {_NUMBER} tokens, "
    rf"Drafted: {_NUMBER} tokens, Per-position acceptance rate: ([0-9., ]+?), Avg Draft acceptance rate: {_NUMBER}%")


def _vllm_log(text: str, path: Path, _: float | None) -> Reported | None:
    lines = _VLLM_LINE.findall(text)
    if not lines:
        return None
    sums: list[float] = []
    rounds = mean_total = 0.0
    for mean, _accepted, drafted, rates, _percent in lines:
        values = [float(v) for v in rates.split(",")]
        if sums and len(values) != len(sums):
            raise Eagle3Error("mixes draft lengths", where=path, found=f"{len(sums)} and {len(values)} positions")
        sums = sums or [0.0] * len(values)
        n = float(drafted) / len(values)
        rounds += n
        mean_total += n * float(mean)
        sums = [s + n * v for s, v in zip(sums, _fractions(values, float(mean), path), strict=True)]
    if rounds == 0:
        raise Eagle3Error("nothing was drafted in these lines", where=path)
    rates = tuple(s / rounds for s in sums)
    return Reported("vLLM log", "served", rates=rates, rounds=rounds, notes=_checked(rates, mean_total / rounds))


def _fractions(rates: Sequence[float], length: float | None, path: Path) -> list[float]:
    """Rates as fractions. Whether they are percent is told by the mean length, 1 + sum of rates."""
    percent = any(r > 1 for r in rates)
    if length is not None and not percent and sum(rates) > 0:
        percent = abs(sum(rates) / 100 - (length - 1)) < abs(sum(rates) - (length - 1))
    values = [r / 100 for r in rates] if percent else list(rates)
    if any(not 0 <= v <= 1 for v in values):
        raise Eagle3Error("per-position rates", where=path, found=list(rates)[:6], expected="0 to 1, or percent")
    return values


def _checked(rates: Sequence[float], length: float | None) -> tuple[str, ...]:
    tau = 1 + sum(rates)
    if length is None or abs(tau - length) <= AGREE * length:
        return ()
    return (f"the source contradicts itself: per-position rates give a length of {tau:.3f}, it reports {length:.3f}; "
            "the rates were used",)


_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+([-+0-9.eE]+|NaN)(?:\s+[0-9.]+)?\s*$", re.MULTILINE)


def _prometheus(text: str, path: Path, _: float | None) -> Reported | None:
    samples = [(name, labels, float(value)) for name, labels, value in _SAMPLE.findall(text) if value != "NaN"]

    def total(name: str) -> float | None:
        values = [v for n, _, v in samples if n in (name, f"{name}_total")]
        return sum(values) if values else None

    drafts = total("vllm:spec_decode_num_drafts")
    if drafts is not None:
        if drafts == 0:
            raise Eagle3Error("no drafts were made yet", where=path, found="vllm:spec_decode_num_drafts 0")
        by_position: dict[int, float] = {}
        for name, labels, value in samples:
            if name.removesuffix("_total") == "vllm:spec_decode_num_accepted_tokens_per_pos":
                position = re.search(r'position="(\d+)"', labels)
                if position:
                    by_position[int(position[1])] = by_position.get(int(position[1]), 0.0) + value
        accepted = total("vllm:spec_decode_num_accepted_tokens")
        if not by_position:
            raise Eagle3Error("has no accepted tokens by position", where=path,
                              expected="vllm:spec_decode_num_accepted_tokens_per_pos")
        rates = tuple(by_position.get(i, 0.0) / drafts for i in range(max(by_position) + 1))
        length = None if accepted is None else 1 + accepted / drafts
        return Reported("vLLM Prometheus", "served", rates=rates, rounds=drafts, notes=_checked(rates, length))
    lengths = [v for n, _, v in samples if n == "sglang:spec_accept_length" and v > 0]
    if not lengths:
        return None
    rates_seen = [v for n, _, v in samples if n == "sglang:spec_accept_rate"]
    steps = [v for n, _, v in samples if n == "sglang:spec_num_steps"]
    k = round(steps[0]) if steps else _drafts_a_round(lengths[0], rates_seen[0] if rates_seen else None)
    return Reported("SGLang Prometheus", "served", tau=sum(lengths) / len(lengths), k=k,
                    notes=("gauges hold the last interval, not the whole run",))


_SGLANG_LINE = re.compile(
    rf"Decode batch.*?#running-req: (\d+).*?accept len: {_NUMBER}(?:, accept rate: {_NUMBER})?")


def _sglang_log(text: str, path: Path, _: float | None) -> Reported | None:
    lines = _SGLANG_LINE.findall(text)
    if not lines:
        return None
    # Every line covers the same number of decode steps, so rounds are as the running requests.
    weights = [max(float(running), 1.0) for running, _, _ in lines]
    tau = sum(w * float(length) for w, (_, length, _) in zip(weights, lines, strict=True)) / sum(weights)
    depths = {_drafts_a_round(float(length), float(rate)) for _, length, rate in lines if rate and float(length) > 1}
    if len(depths) > 1:
        raise Eagle3Error("mixes draft lengths, or a tree was drafted", where=path, found=sorted(map(str, depths)),
                          fix="pass the lines of one setting")
    return Reported("SGLang log", "served", tau=tau, k=depths.pop() if depths else None,
                    notes=(f"{len(lines)} intervals, weighted by running requests",))


def _drafts_a_round(length: float, rate: float | None) -> int | None:
    """SGLang: rate = (length - 1) / (draft tokens - 1), a fraction."""
    return round((length - 1) / rate) if rate and length > 1 else None


# --- JSON ------------------------------------------------------------------------------------------------------


def _json_text(text: str, path: Path, coverage: float | None) -> Reported | None:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        values = [json.loads(text)]
    except json.JSONDecodeError:
        try:
            values = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            if path.suffix not in (".json", ".jsonl"):
                return None  # log lines may begin with a bracket
            raise Eagle3Error(f"is not JSON (line {error.lineno})", where=path, found=error.msg) from None
    objects = [item for value in values for item in _objects(value)]
    for reader in (_meta_info, _vllm_bench, _length_only):
        found = reader(objects, path)
        if found is not None:
            return found
    metrics: Metrics = {}
    for item in objects:
        metrics |= {str(k): v for k, v in item.items() if isinstance(v, (int, float, list))}
    return from_metrics(metrics, path, coverage)


def _objects(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if depth < 8 and isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _objects(item, depth + 1)


def _meta_info(objects: list[dict[str, Any]], path: Path) -> Reported | None:
    """SGLang responses; many of them add up."""
    histogram: list[float] = []
    correct = verified = proposed = 0.0
    for item in objects:
        counts = item.get("spec_correct_drafts_histogram")
        if isinstance(counts, list):
            histogram += [0.0] * (len(counts) - len(histogram))
            for n, count in enumerate(counts):
                histogram[n] += float(count)
        if "spec_verify_ct" in item and "spec_num_correct_drafts" in item:
            verified += float(item["spec_verify_ct"])
            correct += float(item["spec_num_correct_drafts"])
            proposed += float(item.get("spec_num_proposed_drafts") or 0)
    if histogram and sum(histogram) > 0:
        rounds = sum(histogram)
        rates = tuple(sum(histogram[k:]) / rounds for k in range(1, len(histogram)))
        length = 1 + correct / verified if verified else None
        return Reported("SGLang meta_info", "served", rates=rates, rounds=rounds, notes=_checked(rates, length))
    if verified:
        k = round(proposed / verified) if proposed else None
        return Reported("SGLang meta_info", "served", tau=1 + correct / verified, k=k)
    lengths = [float(i["spec_accept_length"]) for i in objects if i.get("spec_accept_length")]
    if not lengths:
        return None
    rates_seen = [float(i["spec_accept_rate"]) for i in objects if i.get("spec_accept_rate")]
    k = _drafts_a_round(lengths[0], rates_seen[0] if rates_seen else None)
    return Reported("SGLang meta_info", "served", tau=sum(lengths) / len(lengths), k=k,
                    notes=("mean of the responses' lengths, not weighted by tokens",))


def _vllm_bench(objects: list[dict[str, Any]], path: Path) -> Reported | None:
    item = next((i for i in objects if "spec_decode_acceptance_length" in i), None)
    if item is None:
        return None
    length = float(item["spec_decode_acceptance_length"])
    rates = item.get("spec_decode_per_position_acceptance_rates")
    rounds = float(item.get("spec_decode_num_drafts") or 0) or None
    if isinstance(rates, list) and rates:
        values = tuple(_fractions([float(r) for r in rates], length, path))
        return Reported("vllm bench serve", "served", rates=values, rounds=rounds, notes=_checked(values, length))
    drafted = float(item.get("spec_decode_draft_tokens") or 0)
    return Reported("vllm bench serve", "served", tau=length, k=round(drafted / rounds) if rounds and drafted else None)


def _length_only(objects: list[dict[str, Any]], path: Path) -> Reported | None:
    for key, kind in (("accept_length", "SGLang bench_serving"), ("avg_spec_accept_length", "SGLang server info"),
                      ("average_acceptance_length", "specforge benchmark")):
        values = [float(i[key]) for i in objects if isinstance(i.get(key), (int, float)) and i[key]]
        if values:
            notes = (f"mean of {len(values)} runs",) if len(values) > 1 else ()
            return Reported(kind, "served", tau=sum(values) / len(values), notes=notes)
    return None


# --- training --------------------------------------------------------------------------------------------------


_STEP_LINE = re.compile(r"step (\d+): (\{.*\})")


def _specforge_log(text: str, path: Path, coverage: float | None) -> Reported | None:
    """``step N: {...}`` lines, printed as Python dictionaries; the last value of each name counts."""
    metrics: Metrics = {}
    for _, body in _STEP_LINE.findall(text):
        try:
            value = ast.literal_eval(body)
        except (ValueError, SyntaxError):
            continue
        if isinstance(value, dict):
            metrics |= {str(k): v for k, v in value.items()}
    return from_metrics(metrics, path, coverage) if metrics else None


def from_metrics(metrics: Mapping[str, Any], path: Path, coverage: float | None) -> Reported:
    """The last training metrics of speculators, SpecForge or EAGLE; held-out ones before training ones."""
    for prefix in ("eval/", "val/", "test/", "train/", ""):
        mine = {k.removeprefix(prefix).removesuffix("_epoch"): v for k, v in metrics.items() if k.startswith(prefix)}
        said = f"{prefix.rstrip('/') or 'unnamed'} metrics"
        for reader in (_speculators, _specforge):
            found = reader(mine, path, coverage, said)
            if found is not None:
                return found
    raise Eagle3Error("holds no acceptance figures that are known", where=path,
                      found=", ".join(sorted(metrics)[:6]) or "no metrics", expected="full_acc_0, acc_0 or served ones")


def _numbered(metrics: Mapping[str, Any], name: str) -> list[float]:
    values = []
    while isinstance(metrics.get(f"{name}_{len(values)}"), (int, float)):
        values.append(float(metrics[f"{name}_{len(values)}"]))
    return values


def _speculators(metrics: Mapping[str, Any], path: Path, coverage: float | None, said: str) -> Reported | None:
    full, conditional = _numbered(metrics, "full_acc"), _numbered(metrics, "cond_acc")
    if not full and not conditional:
        return None
    alpha = list(_conditional(full)) if full else conditional
    if coverage is None:
        raise Eagle3Error("full_acc_k of speculators leaves out targets outside the draft vocabulary", where=path,
                          expected="--coverage, the held-out coverage at this size", fix="eagle3 coverage prints it")
    rates, product = [], 1.0
    for a in alpha:
        product *= a * coverage
        rates.append(product)
    notes = (f"{said}; full_acc_k is blind to targets outside the draft vocabulary: each position was multiplied by "
             f"the held-out coverage {coverage:.4f}",)
    if coverage == 1.0:
        notes = (said,)
    return Reported("speculators metrics", "training_log", rates=tuple(rates), evidence="modelled", notes=notes)


def _specforge(metrics: Mapping[str, Any], path: Path, _: float | None, said: str) -> Reported | None:
    listed = metrics.get("per_position_acc")
    accuracy = [float(a) for a in listed] if isinstance(listed, list) and listed else _numbered(metrics, "acc")
    if not accuracy:
        return None
    if any(not 0 <= a <= 1 for a in accuracy):
        raise Eagle3Error("acc_k", where=path, found=accuracy[:4], expected="0 to 1")
    rates, product = [], 1.0
    for a in accuracy:
        product *= a
        rates.append(product)
    notes = [f"{said}; acc_k is teacher-forced and stands for the conditional acceptance"]
    simulated = metrics.get("simulated_acc_len")
    if isinstance(simulated, (int, float)) and abs(sum(rates) - simulated) > AGREE * max(simulated, 1):
        notes.append(f"simulated_acc_len {simulated:.3f} (bonus left out) does not follow from acc_k: {sum(rates):.3f}")
    return Reported("SpecForge metrics", "training_log", rates=tuple(rates), evidence="modelled", notes=tuple(notes))


def compare(records: Sequence[AcceptanceRecord]) -> list[str]:
    """Pairs of sources at one size whose lengths cannot both be right, in words."""
    said = []
    for i, first in enumerate(records):
        for second in records[i + 1 :]:
            a, b = first.points[-1], second.points[-1]
            depth = min(len(a.alpha), len(b.alpha))
            tau_a, tau_b = _tau(a.alpha[:depth]), _tau(b.alpha[:depth])
            apart = _tau(a.alpha_low[:depth]) > _tau(b.alpha_high[:depth]) or (
                _tau(b.alpha_low[:depth]) > _tau(a.alpha_high[:depth]))
            if a.draft_vocab == b.draft_vocab and apart and abs(tau_a - tau_b) > AGREE * max(tau_a, tau_b):
                said.append(f"over {depth} drafts {first.source} gives tau {tau_a:.3f}, {second.source} {tau_b:.3f}: "
                            "they cannot both be right for one drafter on one workload")
    return said


READERS: tuple[Callable[..., Reported | None], ...] = (_json_text, _vllm_log, _prometheus, _sglang_log, _specforge_log)
