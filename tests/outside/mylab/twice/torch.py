import torch
from torch import nn

from mylab.tinytask.torch import Net


class Twice(Net):
    def __init__(self):
        nn.Module.__init__(self)
        self.fc = nn.Linear(4, 4)

    def forward(self, batch, carry=None, key=None):
        logits = self.fc(torch.tanh(self.fc(batch["x"])).mean(1))
        return {"logits": logits, "label": batch["label"], "weight": batch["weight"]}, carry


def make(task):
    return Twice()
