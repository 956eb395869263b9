"""A test bed: hosts with a slow network on one machine. Each host is a network namespace; the links are shaped.

    with Testbed(2, rate="1gbit") as bed:
        bed.run([(0, command), (1, command)], deadline=60)

Codecs save time only on slow networks, and the kernel's counters check the ledger. A test bed needs root and iproute2;
`missing()` returns what is missing. The names of a test bed are unique. It is removed when its process ends. If the
process was killed, the next test bed, or `python tests/testbed gc`, removes it. Standard library only.
"""

from suite.comm.transport.kernel import count_sent
from testbed.bed import RankFailed, Testbed, rendezvous
from testbed.network import gc, missing

__all__ = ["RankFailed", "Testbed", "count_sent", "gc", "missing", "rendezvous"]
