"""Cost of every communication mode on the test bed: python tests/testbed/table.py [RATE] [DELAY], 1gbit by default.

The mean of 10 MB over two hosts, one rank each, and over two hosts with two ranks each for modes that tell hosts apart.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import wired

from suite import load
from suite.comm.settings import CommSettings
from suite.contract import UserError
from suite.settings import configure
from testbed import Testbed

COLUMNS = "{:<18}{:<7}{:>6}{:>15}{:>15}{:>10}{:>10}"


def modes() -> dict[str, CommSettings]:
    """Return the `comm` settings of every preset that has one mode; policies choose among others."""
    words = ["task=resnet50", "optimizer=kfac"]  # the optimizer that every preset can be used with
    found = {name: configure.resolve_training([*words, f"comm={name}"]).comm for name in load.list_options("comm")}
    return {name: node for name, node in found.items() if not node.policy}


def main(rate: str = "1gbit", delay: str | None = None) -> int:
    """Print the table; 1 where a ledger is not true."""
    every, true = modes(), True
    by_hosts = {
        name: node.model_copy(update={"ranks_per_host": 2})
        for name, node in every.items()
        if "flat" not in node.topology.module
    }
    with Testbed(2, rate, delay) as bed:
        for link in bed.links:
            trip = f"round trip {1e6 * link.round_trip:.0f} us"
            print(f"host {link.source} -> host {link.target}: {link.rate / 1e6:,.1f} Mbit/s, {trip}")
        print(COLUMNS.format("mode", "", "ranks", "ledger bytes", "kernel bytes", "ratio", "seconds"))
        for backend in load.BACKENDS:
            for chosen, local in (({n: m for n, m in every.items() if n not in by_hosts}, 1), (by_hosts, 2)):
                for name, found in wired.start(bed, backend, chosen, local=local, deadline=600).items():
                    ledger, kernel = found["ledger"][0], found["kernel"][0]
                    true &= ledger <= kernel <= 1.07 * ledger + 20_000 and len(found["hashes"]) == 1
                    row = (f"{ledger:,}", f"{kernel:,}", f"{kernel / ledger:.4f}", f"{min(found['seconds']):.4f}")
                    print(COLUMNS.format(name, backend, 2 * local, *row), flush=True)
    print("every ledger is true, and ranks agree" if true else "NOT TRUE: a ledger above is wrong, or ranks differ")
    return 0 if true else 1


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except UserError as error:
        sys.exit(f"suite: {error}")
