"""Projected against real speculative decoding, on SmolLM2-135M with a drafter trained here.

    python -m tests.benchmarks.truth DEMO [--drafter DRAFTER] [--out FOLDER] [--minutes 15]

DEMO is a folder of ``eagle3 demo --train``. Its drafter was trained at D = 8,192
with the target's own rows as a frozen head, so that the larger sizes are the same
drafter with more of those rows. Prompts and the text that acceptance is measured
on are documents that training holds out. First the target's greedy
answers, the one-pass acceptance and the latency profile are made and the
projection is written; only then is anything drafted. Plain decoding runs before,
between and after the drafted runs of every prompt. A run that was stopped goes on
with the next prompt; ``--minutes`` bounds the decoding. The machine must be idle.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import torch

from eagle3_core.acceptance import truth
from eagle3_core.acceptance.one_pass import TextFeatures, evaluate, row_order
from eagle3_core.acceptance.record import read_acceptance, write_acceptance
from eagle3_core.acceptance.summarise import record_of
from eagle3_core.cli.output import print_table
from eagle3_core.corpus.counts import read_counts
from eagle3_core.corpus.tokenizer import load_tokenizer
from eagle3_core.cost.measure import Plan, measure_latency
from eagle3_core.cost.profile import read_profile, write_profile
from eagle3_core.cost.verify import load_target, measure_target
from eagle3_core.demo import HELDOUT
from eagle3_core.drafter.checkpoint import LoadedDrafter, read_drafter
from eagle3_core.drafter.generate import Generated, generate, generate_plain
from eagle3_core.drafter.model import Drafter, cut
from eagle3_core.drafter.target import Target
from eagle3_core.errors import Eagle3Error
from eagle3_core.files import canonical_json, read_json, sha256_file, write_text
from eagle3_core.specs.presets import resolve_target
from eagle3_core.training import run_folder
from eagle3_core.training.features import open_features, split_heldout
from eagle3_core.vocab.mapping import mapping_from_ids
from eagle3_core.vocab.ranking import rank

SIZES = (1024, 4096, 8192, 16384, 32000, 49152)
LENGTHS = (3, 5)
PLAIN_EVERY = 3
"""Drafted runs between two plain ones."""
MEAN_LIMIT, WORST_LIMIT, KENDALL_LIMIT = 0.05, 0.10, 0.7


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.truth")
    parser.add_argument("demo", type=Path)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--heldout", type=float, default=HELDOUT, help="as in training")
    options = parser.parse_args()
    try:
        return run(options)
    except Eagle3Error as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def run(options: argparse.Namespace) -> int:
    drafter_folder = options.drafter or run_folder.checkpoint_named(options.demo / "run", "best")
    out = options.out or options.demo / "truth"
    if not (drafter_folder / "config.json").is_file():
        raise Eagle3Error("no drafter", where=drafter_folder, fix="pass --drafter")
    identity = {"drafter": sha256_file(drafter_folder / "model.safetensors"), "tokens": options.tokens,
                "sizes": list(SIZES), "lengths": list(LENGTHS), "heldout": options.heldout}
    if (out / "identity.json").exists() and read_json(out / "identity.json") != identity:
        raise Eagle3Error("holds another truth test", where=out, fix="choose another --out")
    write_text(out / "identity.json", canonical_json(identity))
    target = Target(load_target(options.demo / "target", "float32", "cpu"))
    loaded = read_drafter(drafter_folder, embedding=target.embedding, head=target.head.weight, dtype="float32")
    if loaded.mapping.draft_vocab_size < max(SIZES):
        loaded = grown(loaded, target.head.weight, drafter_folder)
    sizes = tuple(size for size in SIZES if size <= loaded.mapping.draft_vocab_size)
    tokenizer = load_tokenizer(options.demo / "target")
    ends = tuple(i for i, role in enumerate(tokenizer.roles) if role in ("eos", "end_of_turn"))
    prompts = heldout_prompts(options.demo / "features", options.heldout, options.prompts)
    texts = plain_texts(target, prompts, options.tokens, ends, out / "texts.json")
    context = round(float(np.mean([len(p) + len(t) / 2 for p, t in zip(prompts, texts, strict=True)])))
    order = rank(read_counts(options.demo / "demo.counts.parquet"), "pooled", force=True).order
    projected = projection(options, out, target, loaded, prompts, texts, sizes, order, context)
    drafters = {size: smaller(loaded.drafter, order, size) for size in sizes}
    decode(target, drafters, prompts, texts, ends, options, out / "runs.csv")
    verdict = truth.compare(projected, truth.paired(pl.read_csv(out / "runs.csv", schema=truth.RUNS_SCHEMA)))
    verdict.table.write_csv(out / "result.csv", float_precision=4)
    return show(verdict, read_profile(out / "truth.latency.json").device.name)


def heldout_prompts(features: Path, share: float, count: int) -> list[list[int]]:
    """The questions of held-out documents, up to where the answer begins."""
    _, heldout = split_heldout(open_features([features]), share)
    prompts = []
    for document in heldout:
        answered = document.mask.nonzero()
        if len(answered) > 8:
            prompts.append(document.ids[: int(answered[0])].tolist())
    if not prompts:
        raise Eagle3Error("no held-out document has an answer", where=features)
    return prompts[:count]


def plain_texts(
    target: Target, prompts: list[list[int]], tokens: int, ends: tuple[int, ...], file: Path
) -> list[list[int]]:
    if not file.exists():
        write_text(file, canonical_json(
            [generate_plain(target, prompt, max_new=tokens, eos=ends).ids for prompt in prompts]))
    return read_json(file)


def projection(
    options: argparse.Namespace, out: Path, target: Target, loaded: LoadedDrafter, prompts: list[list[int]],
    texts: list[list[int]], sizes: tuple[int, ...], order: np.ndarray, context: int,
) -> pl.DataFrame:
    """Made once, before anything is drafted; a resumed test keeps it."""
    acceptance, latency = out / "truth.acceptance.json", out / "truth.latency.json"
    spec = resolve_target(str(options.demo / "target"))
    if not acceptance.exists():
        orders = {"pooled": row_order(loaded.drafter.target_ids, order, sizes)}
        tally = evaluate(features_of(target, prompts, texts), loaded.drafter, target.head, orders,
                         depth=max(LENGTHS))[0]
        write_acceptance(record_of(
            tally, target=spec.name, drafter=loaded.source, vocab_size=target.vocab_size,
            trained_draft_vocab=loaded.mapping.draft_vocab_size, source="the target's greedy answers, held out"),
            acceptance)
    if not latency.exists():
        print(f"latency at {len(sizes)} sizes, context {context}", flush=True)
        profile = measure_latency(loaded.drafter.spec, spec.name, Plan(sizes=sizes, context=context, seconds=60.0))
        points = measure_target(target.model, context=context, tokens=(1, *(k + 1 for k in LENGTHS)), seconds=90.0)
        write_profile(profile.model_copy(update={"target_points": tuple(points)}), latency)
    frame = truth.project(read_acceptance(acceptance), read_profile(latency), spec, loaded.drafter.spec, sizes,
                          LENGTHS, context=context)
    if not (out / "projected.csv").exists():
        frame.write_csv(out / "projected.csv")
    return frame


def features_of(target: Target, prompts: list[list[int]], texts: list[list[int]]) -> list[TextFeatures]:
    documents = []
    for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        ids = torch.tensor([*prompt, *text])
        with torch.inference_mode():
            seen = target.forward(ids[None])
        documents.append(TextFeatures(str(number), "all", ids, torch.arange(len(ids)) >= len(prompt), seen.aux[0],
                                      seen.last[0]))
    return documents


def grown(loaded: LoadedDrafter, head: torch.Tensor, folder: Path) -> LoadedDrafter:
    """The same drafter over the whole vocabulary: its head is the target's rows, and the target has the others too.

    Raises Eagle3Error where training moved the rows: what the others would have become is not known.
    """
    small = loaded.drafter
    if not torch.equal(small.lm_head.weight.float(), head[small.target_ids].float()):
        raise Eagle3Error("its head is not the target's, so it ends at its own size", where=folder,
                          found=f"D = {loaded.mapping.draft_vocab_size:,}", expected=f"D = {max(SIZES):,}")
    whole = Drafter(small.spec.with_draft_vocab(len(head)), small.rope, window=small.window)
    state = {name: value for name, value in small.state_dict().items() if name not in ("lm_head.weight", "d2t")}
    whole.load_state_dict(state | {"lm_head.weight": head.float(), "d2t": torch.zeros(len(head), dtype=torch.int64)})
    mapping = mapping_from_ids(np.arange(len(head)), len(head))
    return dataclasses.replace(loaded, drafter=whole.eval(), mapping=mapping)


def smaller(drafter: Drafter, order: np.ndarray, size: int) -> Drafter:
    have = {int(token): row for row, token in enumerate(drafter.target_ids.tolist())}
    return cut(drafter, torch.tensor([have[int(token)] for token in order if int(token) in have][:size]))


def decode(
    target: Target, drafters: dict[int, Drafter], prompts: list[list[int]], texts: list[list[int]],
    ends: tuple[int, ...], options: argparse.Namespace, file: Path,
) -> None:
    """Append the runs of each prompt at once, so that a stopped test loses at most one prompt."""
    runs = pl.read_csv(file, schema=truth.RUNS_SCHEMA) if file.exists() else pl.DataFrame(schema=truth.RUNS_SCHEMA)
    done = set(runs["prompt"])
    settings = [(size, k) for k in LENGTHS for size in drafters]
    until = time.perf_counter() + 60 * options.minutes
    longest = 0.0
    for number, prompt in enumerate(prompts):
        if number in done or len(texts[number]) < 8:
            continue
        started = time.perf_counter()
        if started + longest > until:
            print(f"stopped after {options.minutes:g} minutes; run it again to go on", flush=True)
            break
        rows: list[tuple[int, int, Generated]] = []

        def plain(prompt: list[int] = prompt, rows: list[tuple[int, int, Generated]] = rows) -> None:
            rows.append((0, 0, generate_plain(target, prompt, max_new=options.tokens, eos=ends)))

        plain()
        turned = settings[number % len(settings) :] + settings[: number % len(settings)]
        for index, (size, k) in enumerate(turned, start=1):
            rows.append((size, k, generate(target, drafters[size], prompt, max_new=options.tokens, k=k, eos=ends)))
            if index % PLAIN_EVERY == 0 or index == len(turned):
                plain()
        runs = pl.concat([runs, pl.DataFrame([
            (number, turn, size, k, len(made.ids) - 1, made.rounds if k else 0,
             sum(n * c for n, c in enumerate(made.accepted)) if k else 0, made.draft_s * 1e3, made.verify_s * 1e3,
             made.total_s * 1e3, made.ids == texts[number])
            for turn, (size, k, made) in enumerate(rows)], schema=truth.RUNS_SCHEMA, orient="row")])
        part = file.with_suffix(".part")
        runs.write_csv(part, float_precision=3)
        part.rename(file)
        longest = max(longest, time.perf_counter() - started)
        print(f"prompt {number + 1} of {len(prompts)}: {time.perf_counter() - started:.0f} s", flush=True)
    if not runs["same_text"].all():
        wrong = runs.filter(~pl.col("same_text"))
        print(f"note: {len(wrong)} of {len(runs)} runs wrote another text than plain decoding")


def show(verdict: truth.Verdict, machine: str) -> int:
    print_table(
        f"Speedup over plain decoding on {machine}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        ("K", "D", "tau projected", "tau", "round, tokens (projected)", "round, ms", "speedup projected", "speedup",
         "95 %", "error"),
        [(str(r["k"]), f"{r['draft_vocab']:,}", f"{r['projected_tau']:.3f}", f"{r['tau']:.3f}",
          f"{r['projected_round_ms'] / r['projected_decode_ms']:.3f}", f"{r['round_ms']:.1f}",
          f"{r['projected_speedup']:.3f}", f"{r['speedup']:.3f}", f"{r['low']:.3f} to {r['high']:.3f}",
          f"{r['error']:+.1%}") for r in verdict.table.iter_rows(named=True)])
    order = "none" if verdict.kendall is None else f"{verdict.kendall:.2f} over {verdict.pairs} pairs"
    print(f"mean error {verdict.mean_error:.1%} (limit {MEAN_LIMIT:.0%}), worst {verdict.worst_error:.1%} "
          f"(limit {WORST_LIMIT:.0%}), Kendall tau of the order {order} (limit {KENDALL_LIMIT})")
    good = verdict.mean_error <= MEAN_LIMIT and verdict.worst_error <= WORST_LIMIT and (
        verdict.kendall is None or verdict.kendall >= KENDALL_LIMIT)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
