"""Codec in torch."""

import torch

from suite.comm.codecs import float16
from suite.comm.codecs._half.torch import Half


class Float16(Half, float16.Float16):
    """float16 in torch."""

    kind = torch.float16


make = Float16
