"""How fast a mapping is built and coverage measured, against the plain way in the same run.

    python -m tests.benchmarks.coverage

Mapping: d2t and t2d for V = 151,936, D = 32,000. The plain way asks for every
target id whether it is in the list of chosen ones, as SpecForge's vocabulary
mapping does; it is timed on a slice and scaled to V.
Coverage: all domains and ten folds at 200 sizes of the bundled counts. The plain
way sorts every fold's ids by (-count, id) with numpy and accumulates each domain.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from eagle3_core.cli.output import print_table
from eagle3_core.corpus.counts import FOLDS, TokenCounts, read_counts
from eagle3_core.vocab.coverage import coverage_table
from eagle3_core.vocab.ranking import mapping_at, rank

SAMPLE = Path(__file__).resolve().parents[2] / "data_samples" / "qwen3.counts.parquet"
D = 32_000
SLICE = 400
REPEATS = 15


def timed(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def plain_coverage(counts: TokenCounts, sizes: np.ndarray) -> np.ndarray:
    """The obvious implementation: float64 [domains, sizes]."""
    ids = np.arange(counts.vocab_size)
    hits = np.zeros((len(counts.domains), len(sizes)))
    for fold in range(FOLDS):
        rest = np.delete(counts.counts, fold, axis=1).sum(axis=(0, 1))
        order = np.lexsort((ids, -rest))
        hits += np.cumsum(counts.counts[:, fold][:, order], axis=1)[:, sizes - 1]
    return hits / counts.counts.sum(axis=(1, 2))[:, None]


def main() -> None:
    counts = read_counts(SAMPLE)
    ranking = rank(counts)
    chosen = ranking.ids(D).tolist()

    def build() -> None:
        mapping = mapping_at(ranking, D)
        _ = mapping.d2t, mapping.t2d

    mapping_ms = timed(build)
    list_ms = timed(lambda: [i in chosen for i in range(0, counts.vocab_size, counts.vocab_size // SLICE)], 1)
    list_ms *= counts.vocab_size / (SLICE + 1)
    sizes = np.unique(np.geomspace(1_024, counts.vocab_size, 200).astype(np.int64))
    start = time.perf_counter()
    coverage_table(counts, sizes.tolist(), force=False)
    first_ms = (time.perf_counter() - start) * 1e3
    table_ms = timed(lambda: coverage_table(counts, sizes.tolist()))
    plain_ms = timed(lambda: plain_coverage(counts, sizes), 3)
    table = coverage_table(counts, sizes.tolist(), force=False)
    ours = table.select(f"coverage:{name}" for name in counts.domains).to_numpy().T
    assert np.abs(ours - plain_coverage(counts, sizes)).max() < 1e-12, "the two disagree"
    read_ms = timed(lambda: read_counts(SAMPLE), 3)
    print_table(
        f"{platform.processor() or platform.machine()}, numpy {np.__version__}: medians of {REPEATS}",
        ("work", "ours ms", "plain ms", "times faster", "limit ms"),
        [
            (f"d2t and t2d, D = {D:,}", f"{mapping_ms:.2f}", f"{list_ms:,.0f}", f"{list_ms / mapping_ms:,.0f}", "10"),
            (f"coverage, {len(sizes)} sizes", f"{table_ms:.1f}", f"{plain_ms:.0f}", f"{plain_ms / table_ms:.1f}", "50"),
            ("coverage, first call on a file", f"{first_ms:.0f}", "", "", ""),
            ("reading the counts file", f"{read_ms:.0f}", "", "", ""),
        ],
        left=1,
    )


if __name__ == "__main__":
    main()
