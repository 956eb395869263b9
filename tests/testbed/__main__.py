"""`python tests/testbed up | run | gc`: hosts with a slow network between them, on this machine."""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from suite.contract import UserError
from testbed.bed import RankFailed, Testbed, interrupted, rendezvous
from testbed.network import gc


def main(arguments: list[str]) -> int:
    """Run a command line; return the exit status: 0, 1 if a rank failed, 2 if rejected or without a test bed."""
    parser = argparse.ArgumentParser(prog="python tests/testbed", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="make hosts, measure their links, and keep them until Ctrl-C")
    run = verbs.add_parser(
        "run", help="run a command on every rank, with the environment variables that torchrun and jax set"
    )
    verbs.add_parser("gc", help="remove what a killed test bed left behind")
    for parser_of in (up, run):
        parser_of.add_argument("--hosts", type=int, default=2)
        parser_of.add_argument("--rate", help="rate of every link, 100mbit to 10gbit; by default unlimited")
        parser_of.add_argument("--delay", help="delay between hosts, one way, such as 500us")
    run.add_argument("--ranks", type=int, help="number of ranks on all hosts; by default one per host")
    run.add_argument("--deadline", type=float, default=600.0, help="seconds until the run is stopped")
    run.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND …")
    options = parser.parse_args(arguments)
    try:
        if options.verb == "gc":
            print(f"removed: {', '.join(gc()) or 'nothing'}")
            return 0
        with Testbed(options.hosts, options.rate, options.delay) as bed:
            for link in bed.links:
                print(
                    f"host {link.source} -> host {link.target}: {link.rate / 1e6:,.1f} Mbit/s, "
                    f"round trip {1e6 * link.round_trip:.0f} us",
                    file=sys.stderr,
                )
            return _up(bed) if options.verb == "up" else _run(bed, options)
    except RankFailed as error:
        print(f"suite: {error}", file=sys.stderr)
        return 1
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)
        return 2


def _up(bed: Testbed) -> int:
    for name, address in zip(bed.network.names, bed.addresses, strict=True):
        print(f"{address}  ip netns exec {name} COMMAND", flush=True)
    print("Ctrl-C removes them", flush=True)
    interrupted()
    return 0


def _run(bed: Testbed, options: argparse.Namespace) -> int:
    command = [word for index, word in enumerate(options.command) if index or word != "--"]
    ranks = options.ranks or options.hosts
    if not command or ranks % options.hosts:
        raise UserError("run: use --hosts H --ranks R -- COMMAND …, with R a multiple of H")
    local = ranks // options.hosts
    variables = [rendezvous(rank, ranks, options.hosts, bed.addresses[0]) for rank in range(ranks)]
    before, began = [bed.sent(host) for host in range(options.hosts)], time.monotonic()
    printed = bed.run([(rank // local, command) for rank in range(ranks)], deadline=options.deadline, each=variables)
    print("".join(printed), end="")
    sent = ", ".join(f"{bed.sent(host) - before[host]:,}" for host in range(options.hosts))
    print(f"{time.monotonic() - began:.1f} s; bytes sent by each host's kernel: {sent}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
