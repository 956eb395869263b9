"""Hosts with a real, slow network between them, on one machine: a network namespace each, their links shaped.

    with Testbed(2, rate="1gbit") as bed:
        bed.run([(0, command), (1, command)], deadline=60)

Codecs pay on slow networks, and only a kernel's own counters tell whether a ledger is true. Needs root and iproute2;
`missing()` says what else. Every bed has names of its own and goes when its process goes: at once where that ends
well, with the next bed (or `python -m suite.comm.testbed gc`) where it was killed. Standard library only.
"""

from suite.comm.testbed.bed import RankFailed, Testbed, rendezvous
from suite.comm.testbed.counters import sent
from suite.comm.testbed.network import gc, missing

__all__ = ["RankFailed", "Testbed", "gc", "missing", "rendezvous", "sent"]
