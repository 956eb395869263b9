"""`python -m suite.comm.testbed up | run | gc`: hosts with a slow network between them, on this machine."""

import argparse
import sys
import time

from suite.comm.testbed.bed import RankFailed, Testbed, interrupted, rendezvous
from suite.comm.testbed.network import gc
from suite.contract import UserError


def main(arguments: list[str]) -> int:
    """0 done, 1 a rank failed, 2 bad usage or no bed to be had."""
    parser = argparse.ArgumentParser(prog="python -m suite.comm.testbed", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="make hosts, measure their links, keep them until Ctrl-C")
    run = verbs.add_parser("run", help="run a command on every rank; each is told what torchrun and jax would tell it")
    verbs.add_parser("gc", help="take away what a killed bed left behind")
    for parser_of in (up, run):
        parser_of.add_argument("--hosts", type=int, default=2)
        parser_of.add_argument("--rate", help="of every link: 100mbit to 10gbit; by default as fast as the machine")
        parser_of.add_argument("--delay", help="from host to host, one way: 500us")
    run.add_argument("--ranks", type=int, help="over all hosts; by default one a host")
    run.add_argument("--deadline", type=float, default=600.0, help="seconds")
    run.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND …")
    asked = parser.parse_args(arguments)
    try:
        if asked.verb == "gc":
            print(f"took away: {', '.join(gc()) or 'nothing'}")
            return 0
        with Testbed(asked.hosts, asked.rate, asked.delay) as bed:
            for link in bed.links:
                print(
                    f"host {link.source} -> host {link.target}: {link.rate / 1e6:,.1f} Mbit/s, "
                    f"round trip {1e6 * link.round_trip:.0f} us",
                    file=sys.stderr,
                )
            return _up(bed) if asked.verb == "up" else _run(bed, asked)
    except RankFailed as error:
        print(f"suite: {error}", file=sys.stderr)
        return 1
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)
        return 2


def _up(bed: Testbed) -> int:
    for name, address in zip(bed.network.names, bed.addresses, strict=True):
        print(f"{address}  ip netns exec {name} COMMAND", flush=True)
    print("Ctrl-C takes them away", flush=True)
    interrupted()
    return 0


def _run(bed: Testbed, asked: argparse.Namespace) -> int:
    command = [word for at, word in enumerate(asked.command) if at or word != "--"]
    ranks = asked.ranks or asked.hosts
    if not command or ranks % asked.hosts:
        raise UserError("run: write --hosts H --ranks R -- COMMAND …, with R a multiple of H")
    local = ranks // asked.hosts
    each = [rendezvous(rank, ranks, asked.hosts, bed.addresses[0]) for rank in range(ranks)]
    before, began = [bed.sent(host) for host in range(asked.hosts)], time.monotonic()
    printed = bed.run([(rank // local, command) for rank in range(ranks)], deadline=asked.deadline, each=each)
    print("".join(printed), end="")
    sent = ", ".join(f"{bed.sent(host) - before[host]:,}" for host in range(asked.hosts))
    print(f"{time.monotonic() - began:.1f} s; bytes sent by each host's kernel: {sent}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
