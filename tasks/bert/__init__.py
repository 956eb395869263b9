"""BERT pre-training (Devlin et al. 2019): masked words, and optionally next-sentence prediction.

One description covers all networks, which differ in the configuration, conf/task/bert.yaml. Data, initial weights and
the metric are NumPy; see CARD.md for sources, licences and targets.
"""

import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from suite.contract import Data, Layer, Spec, Target, UserError, divide_total
from suite.tasks import _nn
from suite.tasks._data import order
from suite.tasks._data.public import WIKITEXT_2
from suite.tasks._sparse import Sparsity
from suite.tasks.bert import preparation, records
from suite.tasks.bert.architecture import Architecture
from suite.tasks.bert.sample import Hiding, expand_records

CITATION = "Devlin et al.: BERT, Pre-training of Deep Bidirectional Transformers, NAACL 2019, arXiv:1810.04805"
SUMMARY = "language model pre-training with BERT: masked words and next sentences"
VERSION = "2"  # since dropout draws two elements a word
keeps_result = _nn.keeps_result
EPSILON = 1e-12  # of every layer normalisation, as in Devlin et al.'s code

Batch = dict[str, np.ndarray]


class Source(Protocol):
    """Pre-training records in a training and a validation split; see `sample.make_record_type`."""

    @property
    def data(self) -> Data:
        """Describes the data: checksum or version, and `samples` for the splits `train` and `valid`."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of word pieces; every token is below it."""
        ...

    @property
    def hidden_each(self) -> float:
        """Mean number of masked words in a training record."""
        ...

    def read(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Records of some rows."""
        ...


class Bert:
    """BERT pre-training; the metric is the accuracy in percent over all masked words of the validation split.

    Args:
        source: where the records come from.
        architecture: the network's sizes.
        sequence: tokens of a record.
        batch_size: global batch, in sequences.
        eval_batch_size: batch of a validation pass.
        targets: the ladder of masked-word accuracies, easiest first.

    Attributes:
        hidden_each: mean number of masked words in a record, which is the weight of one next-sentence loss. The loss
            per masked word then equals BERT's: mean masked-word loss plus mean next-sentence loss. It is exact if every
            record has the same number of masked words, and otherwise up to the batch's deviation from the mean.
    """

    name, version, group = "bert", VERSION, 1

    def __init__(
        self,
        source: Source,
        *,
        architecture: Architecture,
        sequence: int,
        batch_size: int,
        eval_batch_size: int,
        targets: Sequence[float],
    ):
        self.source, self.architecture, self.sequence = source, architecture, sequence
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.hidden_each = source.hidden_each
        self.targets = tuple(Target("mlm_accuracy", value) for value in targets)

    @property
    def data(self) -> Data:
        """Data of the records."""
        return self.source.data

    @property
    def rate(self) -> float:
        """Factor of learning rates; 1 if all matrices are dense."""
        return self.architecture.sparsity.rate if self.architecture.sparsity else 1.0

    @property
    def form(self) -> str:
        """Sparse matrices in words: kind, share of zeros, block, and the factor of the learning rate."""
        sparsity = self.architecture.sparsity
        return f"{sparsity} · learning rate × {self.rate:.3g}" if sparsity else ""

    @property
    def by_gradient(self) -> bool:
        """Return whether moving blocks go to the places with the largest gradient."""
        return self.architecture.sparsity is not None and self.architecture.sparsity.growth == "gradient"

    def matrices(self) -> dict[str, Layer]:
        """Return the sparse matrices."""
        return {name: Layer("linear", (f"{name}.weight", f"{name}.bias")) for name in self.architecture.sparse()}

    def moves(self, step: int) -> bool:
        """Return whether blocks move after update `step`."""
        return self.architecture.sparsity is not None and self.architecture.sparsity.moves(step)

    def move(
        self, seed: int, step: int, name: str, weight: np.ndarray, pattern: np.ndarray, gradient: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the next places of one matrix's blocks, and which blocks moved."""
        assert self.architecture.sparsity
        shape = self.architecture.sparse()[name]
        return self.architecture.sparsity.move(seed, step, name, shape, weight, pattern, gradient)

    def flops(self) -> float:
        """FLOPs of the encoder on one sequence, forward and backward."""
        return self.architecture.flops(self.sequence)

    def shapes(self) -> dict[str, Spec]:
        """Every parameter, and the patterns of sparse matrices."""
        return self.architecture.shapes()

    def layers(self) -> dict[str, Layer]:
        """Dense fully connected layers, and the tables of positions and segments."""
        return self.architecture.curvature()

    def count_kept_bytes(self, value: int) -> float:
        """Bytes that one sequence leaves for the backward pass; see `suite.contract.Keeps`."""
        return self.architecture.count_kept_bytes(value, self.sequence, math.ceil(self.hidden_each))

    def init(self, seed: int, name: str, rows: slice | None = None) -> np.ndarray:
        """Return the initial value of one parameter; for a pattern, the places of the blocks."""
        spec, sparsity = self.shapes()[name], self.architecture.sparsity
        if spec.kind != "pattern" or not sparsity:
            return _nn.draw_initial_value(spec, seed, name, rows)
        matrix, _, kind = name.rpartition(".")
        pattern = sparsity.start(seed, matrix, self.architecture.sparse()[matrix])
        if kind == "visited":
            visited = np.zeros(spec.shape, np.int8)
            visited[pattern] = 1
            pattern = visited
        return pattern[rows or slice(None)]

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> Batch:
        """Rank's share of a batch: the arrays of `sample.expand_records`, `weight` and `index`."""
        samples, select = self.data.samples[split], order.compute_training_rows
        rows, numbers, weight = order.take_share(self, samples, split, seed, index, rank, world, select)
        return expand_records(self.source.read(split, rows)) | {"weight": weight, "index": numbers}

    def batches(self, split: str) -> int:
        """Batches in one validation pass."""
        return -(-self.data.samples[split] // self.eval_batch_size)

    def carry(self, samples: int) -> Batch:
        """{}: nothing is carried from batch to batch."""
        return {}

    def score(self, parts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float | None]:
        """Accuracy in percent and mean loss over masked words, and over sentence pairs.

        Both are None if a loss of their kind is not finite; the models' sums are NaN for a logit that is not.
        """
        totals: dict[str, float] = {}
        for part in parts:
            weight = part["weight"].astype(np.float64)
            sums = {
                name: float(weight @ np.where(weight, value, 0.0)) for name, value in part.items() if name != "weight"
            }
            sums["samples"] = float(weight.sum())
            totals = {name: totals.get(name, 0.0) + value for name, value in sums.items()}
        metrics: dict[str, float | None] = {}
        for kind, count in (("mlm", "masks"), ("nsp", "samples")):
            if f"{kind}_hits" in totals:
                loss = divide_total(totals[f"{kind}_loss"], totals[count])
                accuracy = divide_total(totals[f"{kind}_hits"], totals[count], 100.0)
                metrics[f"{kind}_accuracy"] = None if loss is None else accuracy
                metrics[f"{kind}_loss"] = loss
        return metrics


PARTS = "shards"  # what `census` counts samples of
prepare = preparation.prepare
census, check, count_recurring = records.census, records.check, records.count_recurring
PUBLIC = {"wikitext": WIKITEXT_2}  # text, which `suite data bert --from TEXT --to DIR` prepares


class AbsentText:
    """Sizes of Wikipedia and BookCorpus without their text, which is enough for a plan.

    The vocabulary is BERT's. 1,000,000 steps of 256 sequences of 512 are 40 epochs (Devlin et al. 2019, A.2), which
    gives 25.6 million sequences of 128; 10,000 are held out, as in MLPerf.
    """

    vocabulary, hidden_each = 30_522, 0.0
    data = Data("real", "Wikipedia+BookCorpus", "not here", {"train": 25_600_000, "valid": 10_000}, unit="sequences")

    def read(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Raise `UserError`, because the data is absent."""
        raise UserError("no pre-training records are here; set data_dir=DIRECTORY")


def make(
    *,
    data: str,
    source: Mapping[str, Any],
    variant: str,
    sequence: int,
    predictions: int,
    probability: float,
    whole_word: bool,
    next_sentence: bool,
    batch_size: int,
    eval_batch_size: int,
    targets: Sequence[float],
    sparsity: str = "dense",
    sparse: Mapping[str, Any] | None = None,
    on_error: str = "stop",
    absent: bool = False,
    **sizes: Any,
) -> Bert:
    """Make the task from its settings, which settings.py explains.

    `absent` describes it without its records; `sizes` are those of `Architecture`, but for the vocabulary.

    Raises:
        UserError: for sequences without a token, or longer than the table of positions.
    """
    if sequence < (least := 4 if next_sentence else 3):
        raise UserError(f"task.sequence={sequence}: must be at least {least}: a token, [CLS] and each segment's [SEP]")
    if sequence > sizes["positions"]:
        raise UserError(f"task.sequence={sequence}: must be at most task.positions={sizes['positions']}")
    module = importlib.import_module(f"suite.tasks.bert.{data}")
    hiding = Hiding(probability, predictions, whole_word)
    form = {"sequence": sequence, "next_sentence": next_sentence}
    found = AbsentText() if absent else module.make(hiding, **form, **source)
    blocks = Sparsity(sparsity, **(sparse or {})) if sparsity != "dense" else None
    heads = {"vocabulary": found.vocabulary, "next_sentence": next_sentence}
    architecture = Architecture(**heads, **sizes, sparsity=blocks)
    batches = {"sequence": sequence, "batch_size": batch_size, "eval_batch_size": eval_batch_size}
    return Bert(found, architecture=architecture, targets=targets, **batches)
