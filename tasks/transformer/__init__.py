"""Machine translation with the Transformer (Vaswani et al. 2017), and the same network small enough for a laptop.

`grammar` generates sentence pairs, and `corpus` reads real parallel text. `architecture` describes the network, and
`search` generates translations. Data, initial weights, search and metric are NumPy; see CARD.md for sources, licences
and targets.
"""

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from suite.contract import Data, Layer, Spec, Target, UserError, divide_total
from suite.tasks import _nn
from suite.tasks._data import order
from suite.tasks.transformer import corpus, preparation, search
from suite.tasks.transformer.architecture import Architecture
from suite.tasks.transformer.metric import bleu

CITATION = "Vaswani et al.: Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762"
SUMMARY = "WMT translation with the Transformer, by BLEU"
VERSION = "2"  # since dropout draws two elements a word
keeps_result = _nn.keeps_result

Batch = dict[str, np.ndarray]


class Pairs(Protocol):
    """Sentence pairs as words of one shared vocabulary, in a training and a validation split."""

    @property
    def data(self) -> Data:
        """Describes the data, with its checksum or version."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of words of both languages, with those of `architecture.SPECIAL` first."""
        ...

    def lengths(self, split: str) -> tuple[int, int]:
        """Words of the longest source and target that `read` returns, including the end."""
        ...

    def read(self, split: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sources and targets of some rows, (n, `lengths`) int32, each ended by EOS and padded with PAD."""
        ...

    def references(self, split: str, rows: np.ndarray) -> list[str]:
        """Return the translations of some rows as text, before tokenisation."""
        ...

    def count_unwritable(self, longest: int) -> dict[str, int]:
        """Count the held-out translations that no model can write in `longest` words with their end, by cause."""
        ...

    def text(self, tokens: Iterable[np.ndarray]) -> list[str]:
        """Detokenise rows of words, each up to its end."""
        ...


class Translation:
    """Translation; the metrics are BLEU of generated translations, and loss in nats per word, on the validation split.

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
        self.longest = pairs.lengths("valid")[0] + extra  # most words of a generated translation

    @functools.cached_property
    def data(self) -> Data:  # type: ignore[override]
        """Data of the sentences; its note says how many references cannot be written in full."""
        data, causes = self.pairs.data, self.pairs.count_unwritable(self.longest)
        lost = ", ".join(f"{count:,} are {cause}" for cause, count in causes.items() if count)
        return replace(data, note="; ".join(filter(None, (data.note, lost and f"of the references, {lost}"))))

    def shapes(self) -> dict[str, Spec]:
        """Every parameter; there are no buffers."""
        return self.architecture.shapes()

    def layers(self) -> dict[str, Layer]:
        """Linear layers, and embeddings with their own matrix."""
        return self.architecture.layers()

    def count_kept_bytes(self, value: int) -> float:
        """Bytes that one pair leaves for the backward pass; see `suite.contract.Keeps`."""
        return self.architecture.count_kept_bytes(value, *self.pairs.lengths("train"))

    def init(self, seed: int, name: str, rows: slice | None = None) -> np.ndarray:
        """Return the initial value of one parameter."""
        return _nn.draw_initial_value(self.shapes()[name], seed, name, rows)

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> Batch:
        """Rank's share of a batch: `source` (n, S), `target` (n, T) words ended by EOS, `weight`, `index`."""
        samples, select = self.data.samples[split], order.compute_training_rows
        rows, numbers, weight = order.take_share(self, samples, split, seed, index, rank, world, select)
        source, target = self.pairs.read(split, rows)
        return {"source": source, "target": target, "weight": weight, "index": numbers}

    def batches(self, split: str) -> int:
        """Batches in one validation pass."""
        return -(-self.data.samples[split] // self.eval_batch_size)

    def carry(self, samples: int) -> Batch:
        """{}: nothing is carried from batch to batch."""
        return {}

    def generate(
        self,
        batch: Mapping[str, np.ndarray],
        start: Callable[[Mapping[str, np.ndarray]], Any],
        advance: search.Advance,
    ) -> Batch:
        """Generate translations: `written` (n, longest); see `suite.contract.Generates`.

        `undefined` (n,) is NaN if a score of the search was not finite, else 0.
        """
        finite, sentences = True, len(batch["source"])

        def watch(state: Any, rows: np.ndarray, token: np.ndarray, position: int) -> tuple[np.ndarray, Any]:
            nonlocal finite
            scores, state = advance(state, rows, token, position)
            finite = finite and bool(np.isfinite(scores).all())
            return scores, state

        if self.beam == 1:
            written = search.greedy_search(start(batch), watch, sentences=sentences, length=self.longest)
        else:
            settings = {"width": self.beam, "alpha": self.alpha}
            written = search.beam_search(start(batch), watch, sentences=sentences, length=self.longest, **settings)
        return {"written": written, "undefined": np.full(sentences, 0.0 if finite else np.nan, np.float32)}

    def score(self, parts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float | None]:
        """BLEU if translations were generated, and the mean cross-entropy of each word given the words before it.

        Both are None if the cross-entropy of a sentence, or a score that its translation was chosen by, is not finite.
        """
        loss = words = undefined = 0.0
        written, references, generated = [], [], False
        for part in parts:
            real = part["weight"] > 0
            loss += float(part["loss"].astype(np.float64)[real].sum())
            words += float(part["words"].astype(np.float64)[real].sum())
            if "written" in part:
                generated = True
                undefined += float(part["undefined"][real].sum())
                written += self.pairs.text(part["written"][real])
                references += self.pairs.references("valid", part["index"][real])
        score = {"bleu": bleu(written, references) if written else None} if generated else {}
        score |= {"loss": divide_total(loss, words)}
        return score if np.isfinite(loss + undefined) else dict.fromkeys(score)


PARTS = "languages"  # what `census` counts words of


prepare = preparation.prepare
census, check, count_recurring = corpus.census, corpus.check, corpus.count_recurring


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
    """Make the task from its settings, which settings.py explains.

    `absent` describes it at the size of WMT'14 English-French; `options` are those of `Translation`.

    Raises:
        UserError: for sizes that do not fit together, or an ambiguity of real sentences.
    """
    if ambiguity and data != "grammar":
        raise UserError(f"task.ambiguity={ambiguity}: only task.data=grammar has this setting; set task.ambiguity=0")
    module = importlib.import_module(f"suite.tasks.transformer.{data}")
    pairs = module.Absent(source["length"]) if absent else module.make(**source)
    network = Architecture(pairs.vocabulary, depth, width, heads, feed_forward, tying, norm, dropout)
    return Translation(pairs, architecture=network, **options)
