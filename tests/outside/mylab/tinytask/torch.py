import torch
from torch import nn
from torch.nn import functional

from suite.stream.torch import uniform
from suite.tasks._nn.torch import BatchNorm2d, draw_labels


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, 2, 1, bias=False), BatchNorm2d(4, group=4)
        self.embed, self.fc = nn.Embedding(7, 4), nn.Linear(4, 4)

    def forward(self, batch, carry=None, key=None):
        rows = batch["embed.weight.rows"] if "embed.weight.rows" in batch else self.embed(batch["token"])
        x = torch.tanh(self.norm(self.conv(batch["image"]))).mean((2, 3)) + rows.mean(1)
        if not self.training:
            return {"logits": self.fc(x), "label": batch["label"], "weight": batch["weight"]}, carry
        memory = 0.5 * carry["memory"] + 0.1 * x
        return {"logits": self.fc(x + memory.detach()), "label": batch["label"]}, {"memory": memory}

    def lookups(self, batch):
        return {"embed.weight": batch["token"]}

    def loss(self, outputs, batch):
        losses = functional.cross_entropy(outputs["logits"], outputs["label"].long(), reduction="none")
        return (losses * batch["weight"]).sum(), batch["weight"].sum()

    def sample(self, outputs, key, batch):
        return outputs | {"label": draw_labels(outputs["logits"], uniform(key, "label", batch["index"]))}


def make(task):
    return Net()
