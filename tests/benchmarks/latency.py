"""Two measurements of the same drafter, one after the other: how far their medians lie apart, and what they took.

    python -m tests.benchmarks.latency [TARGET] [--dtype float32]

Wants an idle machine: a profile that says it was disturbed proves nothing, and is said here too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from eagle3_core.cli.measure import QUICK_SECONDS
from eagle3_core.cli.output import print_table
from eagle3_core.cost.measure import Plan, auto_sizes, measure_latency
from eagle3_core.cost.profile import LatencyProfile
from eagle3_core.specs.drafter import drafter_for
from eagle3_core.specs.presets import resolve_target

LIMIT = 0.05
QUICK_LIMIT = 60.0
SHOWN = ("fc", "layer", "lm_head", "step")


def times_of(profile: LatencyProfile) -> dict[tuple[str, int | None], float]:
    return {(p.component, p.draft_vocab): p.timing.median_ms for p in profile.points if p.component in SHOWN}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", nargs="?", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    target = resolve_target(options.target)
    plan = Plan(sizes=auto_sizes(target.vocab_size), seconds=QUICK_SECONDS)
    profiles, spent = [], []
    for _ in range(2):
        start = time.perf_counter()
        profiles.append(measure_latency(drafter_for(target), target.name, plan, dtype=options.dtype))
        spent.append(time.perf_counter() - start)
    first, second = map(times_of, profiles)
    apart = {key: abs(first[key] - second[key]) / min(first[key], second[key]) for key in first}
    print_table(
        f"{target.name} drafter, {profiles[0].dtype}, on {profiles[0].device.name}, twice",
        ("part", "D", "first, ms", "second, ms", "apart"),
        [(part, "" if size is None else f"{size:,}", f"{first[part, size]:.3f}", f"{second[part, size]:.3f}",
          f"{apart[part, size]:.1%}") for part, size in first],
        left=1,
    )
    middle, worst = statistics.median(apart.values()), max(apart.values())
    disturbed = any(profile.disturbed for profile in profiles)
    print(f"apart: median {middle:.1%}, worst {worst:.1%} (limit {LIMIT:.0%}); {max(spent):.0f} s a quick run "
          f"(limit {QUICK_LIMIT:.0f} s){'; the machine was busy' if disturbed else ''}")
    return 0 if middle <= LIMIT and max(spent) <= QUICK_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
