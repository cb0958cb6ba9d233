"""What all sizes in one pass cost, against one plain evaluation at the full size.

    python -m tests.benchmarks.acceptance

Both read the same features, unroll the drafter the same number of steps and make
the same logits; the plain one takes argmax and sum min(p, q) at one size. Runs
alternate, so that drift of the machine hits both. Limit: 1.25 times for 24 sizes.
Memory is the peak of a process of its own at V = 262,144 beyond the weights.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import torch

from eagle3_core.acceptance.measure import auto_sizes
from eagle3_core.acceptance.one_pass import TextFeatures, evaluate, row_order
from eagle3_core.cli.output import print_table
from eagle3_core.drafter.model import Drafter
from eagle3_core.drafter.target import TargetHead
from eagle3_core.specs.drafter import DrafterSpec

DEPTH = 3
COST_LIMIT, MEMORY_LIMIT = 1.25, 1 << 30


def setting(vocab: int, hidden: int, tokens: int) -> tuple[TextFeatures, Drafter, TargetHead]:
    heads = hidden // 64
    spec = DrafterSpec(hidden_size=hidden, target_hidden_size=hidden, vocab_size=vocab, draft_vocab_size=vocab,
                       num_heads=heads, num_kv_heads=heads, head_dim=64, intermediate_size=2 * hidden)
    drafter = Drafter(spec).reset().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    head = TargetHead(torch.randn(vocab, hidden, generator=generator) * 0.05)
    document = TextFeatures("d", "all", torch.randint(0, vocab, (tokens,), generator=generator),
                            torch.ones(tokens, dtype=torch.bool),
                            torch.randn(tokens, 3 * hidden, generator=generator),
                            torch.randn(tokens, hidden, generator=generator))
    return document, drafter, head


@torch.inference_mode()
def plain(document: TextFeatures, drafter: Drafter, head: TargetHead, *, sampling: bool, chunk: int) -> torch.Tensor:
    """Greedy hits, and the overlap where asked for, at the full size; as one would write it."""
    states = drafter.unroll(document.aux[None], document.ids[None], DEPTH)
    total = torch.zeros(2)
    at = torch.arange(1, len(document.ids) - 1)
    for start in range(0, len(at), chunk):
        j = at[start : start + chunk]
        z_target = head.logits(document.last[j])
        best = z_target.argmax(dim=-1)
        p = torch.softmax(z_target, dim=-1) if sampling else None
        for k in range(DEPTH):
            z = drafter.lm_head(states[k][0, (j - k - 1).clamp_min(0)])
            total[0] += (z.argmax(dim=-1) == best).sum()
            if p is not None:
                total[1] += torch.minimum(p, torch.softmax(z, dim=-1)).sum()
    return total


def compare(vocab: int, hidden: int, tokens: int, repeats: int) -> list[tuple[str, ...]]:
    document, drafter, head = setting(vocab, hidden, tokens)
    sizes = auto_sizes(vocab, vocab)
    orders = {"pooled": row_order(drafter.target_ids, np.random.default_rng(0).permutation(vocab), sizes)}
    chunk = max(8, (160 << 20) // (4 * 5 * vocab))
    rows = []
    for name, temperatures in (("greedy", (0.0,)), ("greedy and T = 1", (0.0, 1.0))):
        ratios, ours, theirs = [], [], []
        for _ in range(repeats):
            start = time.perf_counter()
            plain(document, drafter, head, sampling=1.0 in temperatures, chunk=chunk)
            middle = time.perf_counter()
            evaluate([document], drafter, head, orders, temperatures=temperatures, depth=DEPTH)
            end = time.perf_counter()
            theirs.append(middle - start)
            ours.append(end - middle)
            ratios.append(ours[-1] / theirs[-1])
        ratio = statistics.median(ratios)
        rows.append((f"V {vocab:,}, H {hidden}, {len(sizes)} sizes, {name}", f"{statistics.median(theirs):.2f} s",
                     f"{statistics.median(ours):.2f} s", f"{ratio:.2f}", "" if ratio <= COST_LIMIT else "over 1.25"))
    return rows


def peak() -> None:
    """Run in a process of its own: prints peak bytes beyond the weights."""
    document, drafter, head = setting(262_144, 640, 160)
    # Making the weights leaves a higher peak than holding them: clear_refs 5 resets it (Linux, proc(5)).
    Path("/proc/self/clear_refs").write_text("5")
    weights = psutil.Process().memory_info().rss
    order = np.random.default_rng(0).permutation(262_144)
    orders = {"pooled": row_order(drafter.target_ids, order, auto_sizes(262_144, 262_144))}
    evaluate([document], drafter, head, orders, temperatures=(0.0, 1.0), depth=DEPTH)
    peak_line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    print(int(peak_line.split()[1]) * 1024 - weights)


def main() -> None:
    if sys.argv[1:] == ["peak"]:
        peak()
        return
    quick = sys.argv[1:] == ["quick"]
    rows = compare(49_152, 576, 192 if quick else 512, 3 if quick else 7)
    if not quick:
        rows += compare(151_936, 1024, 160, 5)
    print_table("one pass against one plain full-size evaluation", ("setting", "plain", "one pass", "ratio", ""), rows,
                left=1)
    said = subprocess.run([sys.executable, "-m", "tests.benchmarks.acceptance", "peak"], capture_output=True, text=True,
                          check=True)
    beyond = int(said.stdout.split()[-1])
    mark = "" if beyond < MEMORY_LIMIT else "  over 1 GiB"
    print(f"memory beyond the weights at V = 262,144: {beyond / 2**20:,.0f} MiB{mark}")


if __name__ == "__main__":
    main()
