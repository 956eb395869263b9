"""A generated language: words from a persistent hidden Markov model, whose best possible prediction is known.

A topic (the hidden state) tends to persist, and each topic has its own words. A masked word can therefore be guessed
from its neighbours, and better with distant ones. Words are strings of syllables, so that text, vocabulary and
WordPiece are real.
"""

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from suite.contract import Data, append_sizes
from suite.tasks.bert.sample import Hiding, fill_record, make_record_type
from suite.tasks.bert.wordpiece import SPECIAL, WordPiece

WORLD = 1  # version: increase it when a formula or constant below changes
SPLITS = {"train": 0, "valid": 1}
STREAM = int.from_bytes(b"chains")  # high word of the counter: separates these draws from others with the same key
TOPICS, WORDS, EACH = 12, 500, 60  # numbers of hidden states, of words, and of words of each state
STAY, CONCENTRATION = 0.85, 0.06  # A = 0.85 I + 0.15 Dirichlet(0.06); without persistence, learning takes long to begin
RANDOM_NEXT = 0.5  # probability that the second segment does not continue the first
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Language:
    """Model's parameters.

    Attributes:
        transition: A (K, K), rows sum to 1.
        stationary: π (K,) with π A = π: the distribution of first states.
        emission: B (K, V).
        ranked: (K, EACH) each state's words, the most frequent first.
        words: the V words.
    """

    transition: np.ndarray
    stationary: np.ndarray
    emission: np.ndarray
    ranked: np.ndarray
    words: list[str]

    def chains(self, draws: np.ndarray, restart: np.ndarray) -> np.ndarray:
        """Words (n, T) from uniform draws (2, n, T); where `restart` (n, T), the state is drawn from π."""
        steps, begin = self.transition.cumsum(1), self.stationary.cumsum()
        zipf = np.cumsum(1.0 / np.arange(1, EACH + 1))
        state = np.zeros(draws.shape[1], np.int64)
        words = np.empty(draws.shape[1:], np.int64)
        for place in range(draws.shape[2]):
            u = draws[0, :, place, None]
            state = ((np.where(restart[:, place, None], begin, steps[state]) < u).sum(1)).clip(max=TOPICS - 1)
            rank = np.searchsorted(zipf, draws[1, :, place] * zipf[-1])
            words[:, place] = self.ranked[state, rank]
        return words


@functools.cache
def make_language() -> Language:
    """Return the language of version WORLD."""
    draws = np.random.default_rng(WORLD)
    transition = STAY * np.eye(TOPICS) + (1 - STAY) * draws.dirichlet(np.full(TOPICS, CONCENTRATION), TOPICS)
    stationary = np.linalg.matrix_power(transition, 1 << 16)[0]  # every row of the power is π
    ranked = np.stack([draws.choice(WORDS, EACH, replace=False) for _ in range(TOPICS)])
    emission = np.zeros((TOPICS, WORDS))
    np.put_along_axis(emission, ranked, np.tile(1.0 / np.arange(1, EACH + 1), (TOPICS, 1)), 1)  # Zipf's law
    syllables = ["".join(pair) for pair in itertools.product(CONSONANTS, VOWELS)]
    pairs = draws.permutation(len(syllables) ** 2)[:WORDS]
    words = [syllables[pair // len(syllables)] + syllables[pair % len(syllables)] for pair in pairs]
    return Language(transition, stationary, emission / emission.sum(1, keepdims=True), ranked, words)


@functools.cache
def make_wordpiece() -> WordPiece:
    """A vocabulary with every word as one piece, and letters for other words."""
    letters = sorted(CONSONANTS + VOWELS)
    return WordPiece([*SPECIAL, ".", *letters, *(f"##{letter}" for letter in letters), *make_language().words])


def draw_uniform(split: str, row: int, count: int) -> np.ndarray:
    """Numbers in [0, 1) of one row of a split."""
    words = np.random.Philox(key=[WORLD, row], counter=[0, 0, SPLITS[split], STREAM]).random_raw(count)
    return (words >> np.uint64(11)) * 2.0**-53


@functools.lru_cache(maxsize=4)
def generate_records(split: str, samples: int, sequence: int, hiding: Hiding, next_sentence: bool) -> np.ndarray:
    """Return the first samples of a split as records; a row does not depend on their number."""
    length = sequence - (3 if next_sentence else 2)
    draws = np.stack([draw_uniform(split, row, 2 * length + 2) for row in range(samples)])
    cut = length // 4 + (draws[:, 0] * (length // 2)).astype(np.int64) if next_sentence else np.full(samples, length)
    random_next = (draws[:, 1] < RANDOM_NEXT) & next_sentence
    place = np.arange(length)
    restart = (place == 0) | ((place == cut[:, None]) & random_next[:, None])
    chains = make_language().chains(draws[:, 2:].reshape(samples, 2, length).swapaxes(0, 1), restart)
    names = np.array(make_language().words)
    tokens = make_wordpiece().encode([" ".join(names[chain]) for chain in chains])
    rows = np.zeros(samples, make_record_type(sequence, hiding.predictions))
    for number, (row, ids) in enumerate(zip(rows, tokens, strict=True)):
        seed = WORLD * len(SPLITS) + SPLITS[split]
        fill_record(
            row, ids[: cut[number]], ids[cut[number] :], make_wordpiece().pieces, hiding, seed=seed, number=number
        )
    rows["random_next"] = random_next
    rows.setflags(write=False)
    return rows


class Source:
    """Generated language as records in memory; generated at the first read, once per process."""

    def __init__(self, hiding: Hiding, *, sequence: int, next_sentence: bool, train: int = 16_384, valid: int = 1_024):
        """Set the generator's options.

        Args:
            hiding: the rule by which tokens are masked.
            sequence: tokens of a sample, all of them used.
            next_sentence: whether a sample has two segments; in half of the samples they do not belong together.
            train: number of training samples.
            valid: number of validation samples.
        """
        self.sequence, self.hiding, self.next_sentence = sequence, hiding, next_sentence
        self.vocabulary = make_wordpiece().pieces.size
        self.predictions, self.hidden_each = hiding.predictions, float(hiding.count(sequence))
        options = f"{sequence}/p{hiding.probability:g}-{hiding.predictions}{'/pairs' if next_sentence else ''}"
        options += "/whole words" if hiding.whole_word else ""
        samples = {"train": train, "valid": valid}
        self.data = Data(
            kind="generated",
            name="hmm",
            identity=append_sizes(f"hmm-{WORLD}/{options}", samples),
            samples=samples,
            unit="sequences",
            note="a generated language with a known best accuracy; it shows patterns, not a natural language's",
        )

    def read(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Records of some rows."""
        return generate_records(split, self.data.samples[split], self.sequence, self.hiding, self.next_sentence)[rows]


make = Source
