"""Reduce-scatter by all-to-all of encoded chunks, summed in rank order, then all-gather of the encoded means.

Values are encoded twice whatever the number of ranks, where a ring would encode at every hop. Every rank decodes the
same bytes, so all ranks hold the same bits afterwards.
"""

from collections.abc import Callable

from suite.comm.transport import Entry, entry

SUMMARY = "all-to-all of encoded chunks, sum in rank order, all-gather"
CITATION = "Seide et al. 2014, doi:10.21437/Interspeech.2014-274, section 4"
CLOSED = False  # only for codecs that are closed under addition


def traffic(name: str, count: int, *, nbytes: Callable[[int], int], world: int, level: str) -> list[Entry]:
    """What `mean` sends; `nbytes` is the codec's."""
    chunk = nbytes(-(-count // world))
    return [
        entry("all_to_all", f"{name}/scatter", "", world * chunk, world, level),
        entry("all_gather", f"{name}/gather", "", chunk, world, level),
    ]
