from torch import nn
from torch.nn import functional

from mylab.encoder import DEPTH, HEADS, LENGTH, LINEAR, WIDTH, WORDS


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        for name, (outputs, inputs) in LINEAR.items():
            self.add_module(name, nn.Linear(inputs, outputs))
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        y = self.norm1(x)
        heads = [m(y).unflatten(2, (HEADS, -1)).transpose(1, 2) for m in (self.query, self.key, self.value)]
        y = functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        for layer in range(DEPTH):
            self.add_module(f"layer{layer}", Block())
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, batch, carry=None, key=None):
        x = self.words(batch["tokens"]) + self.places.weight
        for layer in range(DEPTH):
            x = self.get_submodule(f"layer{layer}")(x)
        return {"logits": self.head(x)}, carry or {}

    def loss(self, outputs, batch):
        losses = functional.cross_entropy(outputs["logits"].transpose(1, 2), batch["tokens"], reduction="none").mean(1)
        return (losses * batch["weight"]).sum(), batch["weight"].sum()


def make(task):
    return Net()
