import torch
from torch import nn
from torch.nn import functional

from mylab.resnet18 import CLASSES, WIDTH, blocks, convolutions
from suite.tasks._nn.torch import BatchNorm2d


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        for name, inputs, outputs, kernel, stride in convolutions():
            unit = nn.Module()
            unit.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
            unit.norm = BatchNorm2d(outputs, group=64)
            self.add_module(name, unit)
        self.fc = nn.Linear(8 * WIDTH, CLASSES)

    def unit(self, name, x):
        unit = self.get_submodule(name)
        return unit.norm(unit.conv(x))

    def forward(self, batch, carry=None, key=None):
        x = torch.relu(self.unit("stem", batch["image"]))
        for name, _, _, stride in blocks():
            y = self.unit(f"{name}b", torch.relu(self.unit(f"{name}a", x)))
            x = torch.relu(y + (self.unit(f"{name}s", x) if stride != 1 else x))
        return {"logits": self.fc(x.mean((2, 3)))}, carry or {}

    def loss(self, outputs, batch):
        losses = functional.cross_entropy(outputs["logits"], batch["label"], reduction="none")
        return (losses * batch["weight"]).sum(), batch["weight"].sum()


def make(task):
    return Net()
