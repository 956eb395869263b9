from contextlib import contextmanager

import numpy as np
import torch

from mylab.noisy import DEVIATION
from suite import stream


class Noisy(torch.optim.SGD):
    def __init__(self, parameters, *, lr=0.1):
        super().__init__(parameters, lr=lr)

    @contextmanager
    def forward_params(self, key):
        group = self.param_groups[0]
        kept = [p.detach().clone() for p in group["params"]]
        with torch.no_grad():
            for name, p in zip(group["param_names"], group["params"], strict=True):
                noise = stream.normal(np, key, name, np.arange(p.numel())).reshape(p.shape)
                p.add_(DEVIATION * torch.from_numpy(noise).to(p))
        yield
        with torch.no_grad():
            for p, value in zip(group["params"], kept, strict=True):
                p.copy_(value)


make = Noisy
