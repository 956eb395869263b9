"""K-FAC's ablation on the test bed beside the published one: python tests/testbed/ablation.py [BACKEND] [RATE].

The rows A8-05 to A8-10 (Ueno et al. 2020) are `comm=kfac_distributed` to `comm=kfac_stale`, those before them earlier
works that the table names; all factors and inverses in every step, unless they are stale. The base is SGD with float32
and the native all-reduce. Two hosts of two ranks, torch at 1gbit by default. A step's time is compared with SGD's in
the same round. Exits with 1 where the last row is no quicker than the first.
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import trained

from suite import published
from suite.contract import UserError
from testbed import Testbed

PRESETS = ("distributed", "symmetric", "float21", "overlap", "hierarchical", "stale")
ROWS = {f"kfac_{preset}": f"A8-{number:02}" for number, preset in enumerate(PRESETS, 5)}
LEVELS = [
    "comm=kfac_symmetric",
    "comm.schedule.module=suite.comm.schedules.overlap",
    "comm.topology.module=suite.comm.topologies.two_level",
]
EARLIER = {  # A8-03 has what A8-02 has
    "A8-01": ["comm=kfac_symmetric", "optimizer.stale=true"],
    "A8-02": LEVELS,
    "A8-04": [*LEVELS, "optimizer.stale=true"],
}
COMMON = ["task=resnet50", "task.batch_size=128", "comm.ranks_per_host=2"]
EVERY = ["optimizer=kfac", "optimizer.factor_interval=1", "optimizer.inverse_interval=1"]
STEPS, ROUNDS = 10, 5  # the first round, in which stale statistics find their intervals, is not measured
COLUMNS = "{:<18}{:<7}{:>24}{:>22}{:>11}{:>13}{:>13}{:>13}"


def main(backend: str = "torch", rate: str = "1gbit") -> int:
    """Print the table."""
    cases = {"sgd": [*COMMON, "optimizer=sgd", "comm=float32"]}
    cases |= {row: [*COMMON, *EVERY, *words] for row, words in EARLIER.items()}
    cases |= {preset: [*COMMON, *EVERY, f"comm={preset}"] for preset in ROWS}
    with Testbed(2, rate) as bed:
        for link in bed.links:
            print(f"host {link.source} -> host {link.target}: {link.rate / 1e6:,.1f} Mbit/s")
        found = trained.start(bed, backend, cases, local=2, steps=STEPS, rounds=ROUNDS, deadline=1800)
    titles = ("", "row", "step", "over SGD", "published", "gradients B", "factors B", "kernel B")
    print(f"{backend}, 2 hosts of 2 ranks; bytes a step, of rank 0 and of its host's kernel")
    print(COLUMNS.format(*titles))
    medians = {}
    for name, case in found.items():
        ratios = sorted(a / b for a, b in zip(case["seconds"], found["sgd"]["seconds"], strict=True))
        medians[name] = statistics.median(ratios)
        row = published.find_row(ROWS.get(name, name)) if name != "sgd" else None
        sent = case["bytes"]["by_name"]
        print(
            COLUMNS.format(
                name,
                row.id if row else "",
                trained.median(case["seconds"]),
                f"{medians[name]:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
                f"{row.details.get('ratio', 'not said')}" if row else "1",
                f"{sent.get('gradients', 0):,.0f}",
                f"{sent.get('factor', 0) + sent.get('inverse', 0):,.0f}",
                f"{case['kernel']:,.0f}",
            )
        )
    first, *_, last = (medians[name] for name in ROWS)
    print(f"all together: {last / first:.2f} of the first row's time, published {108 / 251:.2f}")
    return 0 if last < first else 1


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except UserError as error:
        sys.exit(f"suite: {error}")
