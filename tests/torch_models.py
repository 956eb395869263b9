"""Unmodified models on which partitioning could go wrong, each with a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from small import SMALL_BATCHES, SMALL_TRANSFORMER
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from suite import load
from suite.engine.pipeline.torch import Trained
from suite.launch.job import make_task
from suite.settings import configure

RESNET50 = ["data=shapes", "width=4", "bn_group=2", "image_size=32", *SMALL_BATCHES]
BATCH, LENGTH, WIDTH, WORDS = 8, 10, 16, 50


@dataclass(frozen=True)
class Case:
    """A model, a batch and a loss; `draws`: it draws random numbers."""

    model: nn.Module
    inputs: tuple[Any, ...]
    targets: Any
    loss: Callable[[Any, Any], Tensor] | None
    draws: bool = False


def words(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over all positions."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def classes(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over samples."""
    return F.cross_entropy(outputs, targets)


def ids() -> Tensor:
    """Random words, (BATCH, LENGTH)."""
    return torch.randint(0, WORDS, (BATCH, LENGTH))


class Swapped(nn.Module):
    """Reads two inputs of the same shape in the other order than they are passed."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(b)) * 2 + a) - b)


class Reversed(nn.Module):
    """Reads two inputs of the same shape, the second first, and only at the beginning."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.third(torch.tanh(self.second(torch.tanh(self.first(b)) * 2 + a)))


class Tied(nn.Module):
    """A model whose embedding is also the last layer's weight, and is used a third time between."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.tanh(self.middle(self.embed(tokens)))
        x = x + torch.softmax(x @ self.embed.weight.t(), -1) @ self.embed.weight
        return self.head(torch.tanh(self.middle(x)))


class Skipping(nn.Module):
    """An early value, and the inputs, are used again by the last layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(9))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        early = torch.tanh(self.layers[0](x))
        y = early
        for layer in self.layers[1:-1]:
            y = torch.relu(layer(y)) * mask
        return torch.tanh(self.layers[-1](y)) + early * mask + x


class ForkJoin(nn.Module):
    """Two towers that meet twice; one of their values is a view of a chunk."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.down = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mix, self.out = nn.Bilinear(WIDTH // 2, WIDTH // 2, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.tanh(self.left(x)), torch.relu(self.right(x))
        first, second = self.down(left * right).chunk(2, -1)
        return self.out(self.mix(second, first) + left) * right


class Normalized(nn.Module):
    """A small ResNet: BatchNorm with running statistics, in-place activations, dropout."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(8, 8, 3, padding=1, bias=False),
                nn.BatchNorm2d(8),
                nn.ReLU(inplace=True),
                nn.Conv2d(8, 8, 3, padding=1, bias=False),
                nn.BatchNorm2d(8),
            )
            for _ in range(3)
        )
        self.dropout, self.head = nn.Dropout(0.3), nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = F.relu(x + block(x), inplace=True)
        return self.head(self.dropout(x.mean((2, 3))))


class Layer(nn.Module):
    """Linear layers and norms of one encoder layer."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)


class Encoder(nn.Module):
    """BERT as in NVIDIA's DeepLearningExamples: additive mask, dropout, masked-word head tied to the embedding."""

    def __init__(self, layers: int = 3, heads: int = 4):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm, self.dropout, self.heads = nn.LayerNorm(WIDTH), nn.Dropout(0.1), heads
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.transform, self.bias = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.zeros(WORDS))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        bias = (1.0 - mask[:, None, None, :].to(self.bias.dtype)) * -10000.0
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        x = self.dropout(self.norm(self.words(tokens) + self.places(places)))
        for layer in self.layers:
            assert isinstance(layer, Layer)
            query, key, value = self._split(layer.query(x)), self._split(layer.key(x)), self._split(layer.value(x))
            scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + bias
            mixed = (self.dropout(torch.softmax(scores, -1)) @ value).transpose(1, 2).flatten(2)
            x = layer.first(x + self.dropout(layer.output(mixed)))
            x = layer.second(x + self.dropout(layer.down(F.gelu(layer.up(x)))))
        return F.linear(F.gelu(self.transform(x)), self.words.weight, self.bias)


class OwnLoss(nn.Module):
    """Returns its loss, as models of Hugging Face do with labels; a dictionary is one of the inputs."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, batch: dict[str, Tensor], scale: Tensor) -> Tensor:
        return ((self.layers(batch["x"]) * scale - batch["y"]) ** 2).mean()


class Shared(nn.Module):
    """One BatchNorm and one linear layer are each used twice, so that no cut may come between."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.linear(self.first(x)))
        return self.last(torch.tanh(self.norm(self.linear(torch.tanh(x)))))


class InPlace(nn.Module):
    """Changes a value in place that a view of it shows, too."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x)) * 1.0
        half = y[:, : WIDTH // 2]
        y.add_(1.0)
        return self.last(y) + torch.cat([half, half], -1)


class Attention(nn.Module):
    """A floating-point mask, for which torch takes another kernel if it requires a gradient."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        bias = (1.0 - mask)[:, None, None, :] * -10000.0
        for layer in self.layers:
            query, key, value = (part.view(*x.shape[:2], 4, -1).transpose(1, 2) for part in layer(x).chunk(3, -1))
            x = x + F.scaled_dot_product_attention(query, key, value, attn_mask=bias).transpose(1, 2).flatten(2)
        return x


class Counting(nn.Module):
    """Its results depend on a buffer that every forward pass changes."""

    count: Tensor

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1.0)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x * self.count


def hugging_face() -> Case:
    """BERT of Hugging Face's transformers with random weights; its head is tied to the embedding."""
    pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[dev]'")
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=WORDS,
        max_position_embeddings=LENGTH,
        hidden_size=WIDTH,
        num_attention_heads=4,
        num_hidden_layers=3,
        intermediate_size=2 * WIDTH,
    )
    model = BertForMaskedLM(config).train()
    mask = torch.rand(BATCH, LENGTH) > 0.2
    mask[:, 0] = True
    return Case(model, (ids(), mask.long()), ids(), lambda outputs, y: words(outputs.logits, y), draws=True)


def of_suite(name: str, options: list[str]) -> Case:
    """A task's own model with its loss and a batch, as a run with `partition=` trains it."""
    config = configure.resolve([f"+task={name}", *(f"task.{option}" for option in options), "seed=0"])
    task = make_task(config)
    with torch.device("meta"):
        model = load.load_half(config.task.module, "torch").make(task)
    initial = {key: torch.from_numpy(task.init(0, key)) for key in task.shapes()}
    model.load_state_dict(initial, assign=True)
    batch = {key: torch.from_numpy(value) for key, value in task.batch("train", 0, 0, 0, 1).items()}
    inputs = batch, torch.tensor(0), torch.tensor(0)  # seed and step, from which dropout draws
    return Case(Trained(model).train(), inputs, None, lambda sums, _: sums[0])


def rows() -> Tensor:
    """(BATCH, WIDTH) normal values."""
    return torch.randn(BATCH, WIDTH)


def mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared difference."""
    return ((outputs - targets) ** 2).mean()


CASES: dict[str, Callable[[], Case]] = {
    "swapped": lambda: Case(Swapped(), (rows(), rows()), rows(), mean_square),
    "reversed": lambda: Case(Reversed(), (rows(), rows()), rows(), mean_square),
    "tied": lambda: Case(Tied(), (ids(),), ids(), words),
    "skipping": lambda: Case(Skipping(), (rows(), torch.rand(BATCH, 1) > 0.2), rows(), mean_square),
    "fork_join": lambda: Case(ForkJoin(), (rows(),), rows(), mean_square),
    "normalized": lambda: Case(
        Normalized(), (torch.randn(BATCH, 3, 6, 6),), torch.randint(0, 5, (BATCH,)), classes, draws=True
    ),
    "encoder": lambda: Case(Encoder(), (ids(), torch.rand(BATCH, LENGTH) > 0.2), ids(), words, draws=True),
    "attention": lambda: Case(
        Attention(),
        (torch.randn(BATCH, LENGTH, WIDTH), (torch.rand(BATCH, LENGTH) > 0.2).float()),
        torch.randn(BATCH, LENGTH, WIDTH),
        mean_square,
    ),
    "counting": lambda: Case(Counting(), (rows(),), rows(), mean_square),
    "hugging_face": hugging_face,
    "own_loss": lambda: Case(OwnLoss(), ({"x": rows(), "y": rows()}, torch.tensor(2.0)), None, None),
    "shared": lambda: Case(Shared(), (rows(),), rows(), mean_square),
    "in_place": lambda: Case(InPlace(), (rows(),), rows(), mean_square),
}
LARGE: dict[str, Callable[[], Case]] = {  # each takes seconds to trace
    "resnet50": lambda: of_suite("resnet50", RESNET50),
    "transformer": lambda: of_suite("transformer", [*SMALL_TRANSFORMER, "dropout=0.1"]),
}


def made(name: str) -> Case:
    """A case with its weights and batch, the same every time."""
    torch.manual_seed(0)
    return (CASES | LARGE)[name]()


def slices(batch: Any, number: int, count: int) -> Any:
    """Micro-batch `number` of `count`; tensors without samples are whole."""

    def cut(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.ndim:
            return leaf
        size = len(leaf) // count
        return leaf[number * size : (number + 1) * size]

    return pytree.tree_map(cut, batch)
