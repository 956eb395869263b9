"""Reduce-scatter by all-to-all of encoded chunks, summed in rank order, then all-gather of the encoded means.

Values are encoded twice whatever the number of ranks, where a ring would encode at every hop. Every rank decodes the
same bytes, so all ranks hold the same bits afterwards.
"""

SUMMARY = "all-to-all of encoded chunks, sum in rank order, all-gather"
CITATION = ""
NEEDS = ()
