"""Bytes that 1-bit Adam sends (DeepSpeed's blog post of 9 September 2020)."""

from suite.comm.codecs.float16 import Float16
from suite.comm.codecs.onebit import OneBit


def measure(seed: int, *, warmup: float, values: int = 336_226_108) -> float:
    """Return the bytes of gradients in float16 in all steps, over those of 1-bit Adam, by the suite's codecs.

    Args:
        seed: unused; the bytes depend on the number of values only.
        warmup: share of the steps that send float16; the others send `onebit`.
        values: in a gradient. BERT-Large has 336,226,108 parameters in this suite.
    """
    whole, compressed = Float16().nbytes(values), OneBit().nbytes(values)
    return whole / (warmup * whole + (1 - warmup) * compressed)
