"""Cuts documents into sequences, like BERT's create_pretraining_data.py (Devlin et al. 2019, A.2)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

Tokens = np.ndarray
CUT_OFF = "cut off at the end of a sequence"  # reasons for which pieces of a document are in no sequence
ALONE = "no other document to pair them with"
EMPTY = np.zeros(0, np.uint16)


@dataclass(frozen=True)
class Pair:
    """One or two segments; the second may be empty. `random_next`: whether it comes from another document."""

    first: Tokens
    second: Tokens
    random_next: bool = False


@dataclass
class Losses:
    """Pieces of documents that are in no record, by reason.

    Attributes:
        unknown: the number of [UNK], which is not counted here, but when the text is encoded.
        counts: by reason.
    """

    unknown: int = -1
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str, before: Sequence[Tokens], after: Sequence[Tokens] = ()) -> None:
        """Count the pieces that are in the arrays `before` but not in those `after`."""
        lost = self._known(before) - self._known(after)
        if lost:
            self.counts[reason] += lost

    def _known(self, arrays: Sequence[Tokens]) -> int:
        return sum(int((tokens != self.unknown).sum()) for tokens in arrays)


@dataclass(frozen=True)
class Packing:
    """Rule by which documents are cut.

    Attributes:
        sequence: tokens of a record, special ones included.
        next_sentence: use two segments instead of one.
        short: probability that a record aims at a random shorter length, so that the model sees such ones too.
    """

    sequence: int
    next_sentence: bool
    short: float

    @property
    def room(self) -> int:
        """Tokens of a record that are not special ones."""
        return self.sequence - (3 if self.next_sentence else 2)

    def fitted(self, sentence: Tokens) -> list[Tokens]:
        """Cut a sentence that no record has room for into parts. One part fills a record, or two where it has two.

        In text without full stops, each paragraph is one sentence. All but its beginning would be lost.
        """
        if len(sentence) <= self.room:
            return [sentence]
        size = -(-self.room // 2) if self.next_sentence else self.room
        return [sentence[start : start + size] for start in range(0, len(sentence), size)]

    def cut(
        self, documents: Sequence[list[Tokens]], draws: np.random.Generator, losses: Losses | None = None
    ) -> Iterator[Pair]:
        """All sequences of some documents, each a list of sentences; a random second segment is another's.

        Args:
            documents: of one group.
            draws: where to cut, and which segments to join.
            losses: counts the pieces that are in no sequence.
        """
        losses = losses or Losses()
        for number in range(len(documents)):
            yield from self._document(documents, number, draws, losses)

    def _document(
        self, documents: Sequence[list[Tokens]], number: int, draws: np.random.Generator, losses: Losses
    ) -> Iterator[Pair]:
        document, room = documents[number], self.room
        place = 0
        while place < len(document):
            goal = int(draws.integers(2, room + 1)) if draws.random() < self.short else room
            end, size = place, 0
            while end < len(document) and size < goal:
                size += len(document[end])
                end += 1
            chunk, place = document[place:end], end
            if not self.next_sentence:
                pair = Pair(np.concatenate(chunk)[:room], EMPTY)
                losses.add(CUT_OFF, chunk, [pair.first])
                yield pair
                continue
            cut = int(draws.integers(1, len(chunk))) if len(chunk) > 1 else 1
            first = np.concatenate(chunk[:cut])
            if len(chunk) > 1 and (draws.random() >= 0.5 or len(documents) == 1):
                pair = self._shorten(Pair(first, np.concatenate(chunk[cut:])), room, draws)
                losses.add(CUT_OFF, chunk, [pair.first, pair.second])
                yield pair
            elif len(documents) == 1:
                losses.add(ALONE, chunk)
            else:
                place -= len(chunk) - cut  # what the random segment displaced is used again
                other = documents[(number + int(draws.integers(1, len(documents)))) % len(documents)]
                second = self._from(other, max(1, goal - len(first)), draws)
                pair = self._shorten(Pair(first, second, random_next=True), room, draws)
                losses.add(CUT_OFF, [first], [pair.first])
                yield pair

    def _from(self, document: list[Tokens], size: int, draws: np.random.Generator) -> Tokens:
        """Sentences from a random one on, until there are `size` tokens."""
        chosen: list[Tokens] = []
        for sentence in document[int(draws.integers(len(document))) :]:
            chosen.append(sentence)
            if sum(map(len, chosen)) >= size:
                break
        return np.concatenate(chosen)

    def _shorten(self, pair: Pair, room: int, draws: np.random.Generator) -> Pair:
        """Take tokens from the longer segment, from either end at random, until both fit."""
        first, second = pair.first, pair.second
        while len(first) + len(second) > room:
            part = slice(1, None) if draws.random() < 0.5 else slice(None, -1)
            if len(first) > len(second):
                first = first[part]
            else:
                second = second[part]
        return Pair(first, second, pair.random_next)
