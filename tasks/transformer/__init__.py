"""Machine translation with the Transformer (Vaswani et al. 2017), and the same network small enough for a laptop.

Sentence pairs come from a source (`grammar`, generated, or `corpus`, real parallel text), the network from
`architecture`, the words that the model writes from `search`. Data, initial weights, search and metric are NumPy; see
CARD.md for sources, licences and targets.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from suite.contract import Data, Layer, Spec, Target, UserError
from suite.tasks import _nn
from suite.tasks._data import order
from suite.tasks.transformer import search
from suite.tasks.transformer.architecture import Architecture
from suite.tasks.transformer.metric import bleu

CITATION = "Vaswani et al.: Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762"
SUMMARY = "WMT translation with the Transformer, by BLEU"
VERSION = "1"

Batch = dict[str, np.ndarray]


class Pairs(Protocol):
    """Sentence pairs as words of one shared vocabulary, in a training and a validation split."""

    @property
    def data(self) -> Data:
        """What this is, with its checksum or version."""
        ...

    @property
    def vocabulary(self) -> int:
        """Words of both languages together, those of `architecture.SPECIAL` first."""
        ...

    def lengths(self, split: str) -> tuple[int, int]:
        """Words of the longest source and target that `read` gives, the end included."""
        ...

    def read(self, split: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sources and targets of some rows, (n, `lengths`) int32, each closed by EOS and filled up with PAD."""
        ...

    def references(self, split: str, rows: np.ndarray) -> list[str]:
        """The translations of some rows as they were written, not as they were cut into words."""
        ...

    def text(self, tokens: Iterable[np.ndarray]) -> list[str]:
        """Rows of words, each up to its end, as detokenised sentences."""
        ...


class Translation:
    """Translation: BLEU of what the model writes on the validation split, and its loss there in nats a word.

    Args:
        pairs: where the sentences come from.
        architecture: the network's sizes.
        batch_size: sentences in the global batch.
        eval_batch_size: sentences in a batch of a validation pass.
        targets: the ladder in BLEU, easiest first.
        smoothing: label smoothing ε: a share ε of the target is spread evenly over the vocabulary (Szegedy et al.
            2016, §7; in training only).
        beam: hypotheses kept by the search; 1 is greedy.
        alpha: exponent of the beam's length penalty.
        extra: words that a translation may have beyond the longest source of its split.
    """

    name, version, group = "transformer", VERSION, 1

    def __init__(
        self,
        pairs: Pairs,
        *,
        architecture: Architecture,
        batch_size: int,
        eval_batch_size: int,
        targets: Sequence[float],
        smoothing: float = 0.0,
        beam: int = 1,
        alpha: float = 0.6,
        extra: int = 50,
    ):
        self.pairs, self.architecture = pairs, architecture
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.targets = tuple(Target("bleu", value) for value in targets)
        self.smoothing, self.beam, self.alpha = smoothing, beam, alpha
        self.longest = pairs.lengths("valid")[0] + extra  # words that the search may write

    @property
    def data(self) -> Data:
        """Where the sentences come from."""
        return self.pairs.data

    def shapes(self) -> dict[str, Spec]:
        """Every parameter; there are no buffers."""
        return self.architecture.shapes()

    def layers(self) -> dict[str, Layer]:
        """Linear layers, and embeddings that share their matrix with nothing."""
        return self.architecture.layers()

    def init(self, seed: int, name: str, rows: slice | None = None) -> np.ndarray:
        """The initial value of one parameter."""
        return _nn.draw(self.shapes()[name], seed, name, rows)

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> Batch:
        """Rank's share of a batch: `source` (n, S), `target` (n, T) words closed by EOS, `weight`, `index`."""
        if split == "train":
            rows, numbers = order.scatter(self.data.samples[split], batch_size=self.batch_size, seed=seed, index=index)
            weight = np.ones(len(rows), np.float32)
        else:
            rows, weight = order.sweep(self.data.samples[split], batch_size=self.eval_batch_size, index=index)
            numbers = index * self.eval_batch_size + np.arange(len(rows))
        share = len(rows) // world
        mine = slice(rank * share, (rank + 1) * share)
        source, target = self.pairs.read(split, rows[mine])
        return {"source": source, "target": target, "weight": weight[mine], "index": numbers[mine].astype(np.int64)}

    def batches(self, split: str) -> int:
        """Batches in one validation pass."""
        return -(-self.data.samples[split] // self.eval_batch_size)

    def carry(self, samples: int) -> Batch:
        """Nothing lives from batch to batch."""
        return {}

    def generate(
        self,
        batch: Mapping[str, np.ndarray],
        start: Callable[[Mapping[str, np.ndarray]], Any],
        advance: search.Advance,
    ) -> Batch:
        """`written` (n, longest): what the model writes for each source; see `suite.contract.Generates`."""
        limits = {"sentences": len(batch["source"]), "length": self.longest}
        if self.beam == 1:
            return {"written": search.greedy(start(batch), advance, **limits)}
        return {"written": search.beam(start(batch), advance, width=self.beam, alpha=self.alpha, **limits)}

    def score(self, parts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float]:
        """BLEU where sentences were written, and the mean cross-entropy of a word given those before it."""
        loss = words = 0.0
        written, references = [], []
        for part in parts:
            real = part["weight"] > 0
            loss += float(part["loss"].astype(np.float64)[real].sum())
            words += float(part["words"].astype(np.float64)[real].sum())
            if "written" in part:
                written += self.pairs.text(part["written"][real])
                references += self.pairs.references("valid", part["index"][real])
        return ({"bleu": bleu(written, references)} if written else {}) | {"loss": loss / words}


SOURCES = ("grammar", "corpus")
PARTS = "languages"  # of which `census` counts the words


def prepare(source: Path, target: Path, **options: Any) -> None:
    """Make a prepared corpus from text files; options as under `prepare` in conf/task/transformer.yaml."""
    from suite.tasks.transformer import preparation

    preparation.prepare(source, target, **options)


def check(data_dir: str) -> list[str]:
    """One line for each damaged file of a prepared corpus; reads them all."""
    from suite.tasks.transformer import corpus

    return corpus.verify(data_dir)


def census(data_dir: str) -> dict[str, dict[str, int]]:
    """Words on each side of each split of a prepared corpus."""
    from suite.tasks.transformer import corpus

    splits = corpus.manifest_of(data_dir)[1]["splits"]
    return {
        split: {f"words of {side}": count for side, count in part["words"].items()} for split, part in splits.items()
    }


def make(
    *,
    data: str,
    source: Mapping[str, Any],
    variant: str,
    depth: int,
    width: int,
    heads: int,
    feed_forward: int,
    tying: str,
    norm: str,
    dropout: float,
    ambiguity: float = 0.0,
    on_error: str = "stop",
    absent: bool = False,
    **options: Any,
) -> Translation:
    """The task from its configuration (conf/task/transformer.yaml).

    Args:
        data: where the sentences come from, one of SOURCES.
        source: what that source's `make` takes.
        variant: the name under which the network's sizes stand in the YAML file.
        depth: layers of each stack.
        width: of the residual stream.
        heads: of each attention.
        feed_forward: width of the hidden layer.
        tying: which of the three word matrices are one: none, decoder or all.
        norm: where LayerNorm stands, post or pre.
        dropout: probability.
        ambiguity: of the grammar, which it reaches through the YAML file.
        on_error: of `suite data`, likewise: what to do with a line that cannot be read, stop or skip.
        absent: describe the task without its directory, at the size of WMT'14 English-French.
        options: of `Translation`.

    Raises:
        UserError: for an unknown source or way to treat errors, or sizes that make no network.
    """
    for name, value, known in (("data", data, SOURCES), ("on_error", on_error, ("stop", "skip"))):
        if value not in known:
            raise UserError(f"task.{name}={value}: unknown; one of {', '.join(known)}")
    if ambiguity and data != "grammar":
        raise UserError(f"task.ambiguity={ambiguity}: only task.data=grammar has it, not {data}")
    module = importlib.import_module(f"suite.tasks.transformer.{data}")
    pairs = module.Absent() if absent else module.make(**source)
    network = Architecture(pairs.vocabulary, depth, width, heads, feed_forward, tying, norm, dropout)
    return Translation(pairs, architecture=network, **options)
