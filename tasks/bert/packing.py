"""Documents to sequences, the way BERT's create_pretraining_data.py cuts them (Devlin et al. 2019, A.2)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

Tokens = np.ndarray
EMPTY = np.zeros(0, np.uint16)


@dataclass(frozen=True)
class Pair:
    """Two segments, the second empty where there is one only; `random_next` if it comes from another document."""

    first: Tokens
    second: Tokens
    random_next: bool = False


@dataclass(frozen=True)
class Packing:
    """How documents are cut.

    Attributes:
        sequence: tokens of a record, special ones included.
        next_sentence: two segments rather than one.
        short: probability that a record aims at a random shorter length, so that the model sees such ones too.
    """

    sequence: int
    next_sentence: bool
    short: float

    def cut(self, documents: Sequence[list[Tokens]], draws: np.random.Generator) -> Iterator[Pair]:
        """All sequences of some documents, each a list of sentences; a random second segment is another's."""
        for number in range(len(documents)):
            yield from self._document(documents, number, draws)

    def _document(self, documents: Sequence[list[Tokens]], number: int, draws: np.random.Generator) -> Iterator[Pair]:
        document = documents[number]
        room = self.sequence - (3 if self.next_sentence else 2)
        place = 0
        while place < len(document):
            goal = int(draws.integers(2, room + 1)) if draws.random() < self.short else room
            end, size = place, 0
            while end < len(document) and size < goal:
                size += len(document[end])
                end += 1
            chunk, place = document[place:end], end
            if not self.next_sentence:
                yield Pair(np.concatenate(chunk)[:room], EMPTY)
                continue
            cut = int(draws.integers(1, len(chunk))) if len(chunk) > 1 else 1
            first = np.concatenate(chunk[:cut])
            if len(chunk) > 1 and draws.random() >= 0.5:
                yield self._shorten(Pair(first, np.concatenate(chunk[cut:])), room, draws)
            elif len(documents) > 1:
                place -= len(chunk) - cut  # what the random segment displaced is used again
                other = documents[(number + int(draws.integers(1, len(documents)))) % len(documents)]
                second = self._from(other, max(1, goal - len(first)), draws)
                yield self._shorten(Pair(first, second, random_next=True), room, draws)

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
