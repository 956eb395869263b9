"""Codec in torch."""

import torch

from suite.comm.codecs import bfloat16
from suite.comm.codecs._half.torch import Half


class BFloat16(Half, bfloat16.BFloat16):
    """bfloat16 in torch."""

    kind = torch.bfloat16


make = BFloat16
