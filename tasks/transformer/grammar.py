"""Two generated languages with a deterministic translation between them, so that BLEU 100 can be reached.

The source says `the boty ganu not kifaz thes ruda`; the target puts adjectives behind their noun in reversed order,
makes article and adjective agree with it in gender and number and the verb with its subject in number, wraps a negated
verb in `ne … pas`, and brings the prepositional phrase from the end of the sentence to its front. The gender must be
learned for each noun. A sentence is a function of (world version, split, row): counter-based draws, nothing is stored.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from suite import stream
from suite.contract import Data, UserError, append_sizes
from suite.tasks.transformer.architecture import EOS, PAD, SPECIAL
from suite.tasks.transformer.metric import bleu, format_signature

WORLD = 1  # version: increase it when a word, rule or constant below changes
SPLITS = {"train": 0, "valid": 1, "test": 2}
FUNCTION = ("the", "thes", "not", ",", "le", "la", "les", "ne", "pas")
# Of each kind of word: how many stems, and the endings of its forms. Capitals are the target's.
FORMS: dict[str, tuple[int, tuple[str, ...]]] = {
    "noun": (120, ("", "s")),  # singular, plural
    "adjective": (40, ("y",)),
    "verb": (60, ("z", "")),  # of a singular subject, of a plural one
    "preposition": (12, ("",)),
    "NOUN": (120, ("", "x")),
    "ADJECTIVE": (40, ("", "s", "e", "es")),  # masculine, its plural, feminine, its plural
    "VERB": (60, ("t", "nt")),
    "SYNONYM": (60, ("t", "nt")),  # `ambiguity` replaces verbs by these
    "PREPOSITION": (12, ("",)),
}
PLURAL, NEGATED, PLACED = 0.4, 0.25, 0.5  # probabilities of a plural noun, a negation, a prepositional phrase
ADJECTIVES = (0.45, 0.40, 0.15)  # of none, one and two
ZIPF, MIXED = 1.3, 0.7  # nouns: exponent of the power law, and its share; the rest is uniform
SOURCE_LENGTH, TARGET_LENGTH = 16, 18  # words of the longest sentence, including its end


@dataclass(frozen=True)
class Lexicon:
    """Words of both languages by number, and the tables of the grammar.

    Attributes:
        words: the shared vocabulary.
        start: number of the first form of each kind in FORMS.
        gender: 0 or 1 of each noun.
        nouns: cumulative probabilities of the nouns.
    """

    words: tuple[str, ...]
    start: dict[str, int]
    gender: np.ndarray
    nouns: np.ndarray

    def word(self, text: str) -> int:
        """Return the number of a function word."""
        return len(SPECIAL) + FUNCTION.index(text)

    def form(self, kind: str, stem: np.ndarray, ending: np.ndarray | int = 0) -> np.ndarray:
        """Numbers of the words of one kind with these stems and endings."""
        return self.start[kind] + stem * len(FORMS[kind][1]) + ending


@functools.cache
def make_lexicon() -> Lexicon:
    """Return the one lexicon of this world: all stems of two syllables differ, so that all words differ."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    raw = np.random.Philox(key=[WORLD, 0]).random_raw(len(syllables) ** 2 + FORMS["noun"][0])
    stems = iter(np.argsort(raw[: len(syllables) ** 2], kind="stable"))
    words, start = [*SPECIAL, *FUNCTION], {}
    for kind, (count, endings) in FORMS.items():
        start[kind] = len(words)
        for first, second in (divmod(next(stems), len(syllables)) for _ in range(count)):
            words += [syllables[first] + syllables[second] + ending for ending in endings]
    rank = np.arange(1, FORMS["noun"][0] + 1)
    chance = MIXED * rank**-ZIPF / (rank**-ZIPF).sum() + (1.0 - MIXED) / len(rank)
    return Lexicon(tuple(words), start, (raw[len(syllables) ** 2 :] >> 63).astype(int), chance.cumsum())


class Grammar:
    """Generated sentence pairs; see `suite.tasks.transformer.Pairs`.

    Args:
        train: sentences before an epoch repeats itself.
        valid: sentences to validate on.
        ambiguity: probability that the reference has the verb's synonym instead of the verb, for no reason that the
            source shows. Up to one half the best translation never uses it, and its expected number of matching
            n-grams is the highest for every n at once; `ceiling` scores it.

    Raises:
        UserError: for an ambiguity outside 0…0.5.
    """

    def __init__(self, *, train: int = 100_000, valid: int = 200, ambiguity: float = 0.0):
        if not 0.0 <= ambiguity <= 0.5:
            raise UserError(f"task.ambiguity={ambiguity}: must lie between 0 and 0.5")
        self.ambiguity, self.words = ambiguity, make_lexicon().words
        self.vocabulary = len(self.words)
        samples = {"train": train, "valid": valid}
        self.data = Data(
            kind="generated",
            name="grammar",
            identity=append_sizes(f"v{WORLD}/a{ambiguity:g}", samples),
            samples=samples,
            unit="sentence pairs",
            note=f"generated languages: a stand-in that shows patterns; BLEU is sacreBLEU {format_signature()}",
        )

    def lengths(self, split: str) -> tuple[int, int]:
        """Words of the longest source and target, the end included."""
        return SOURCE_LENGTH, TARGET_LENGTH

    def read(self, split: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sources (n, 16) and targets (n, 18) of some rows, ended by EOS and padded with PAD, int32."""
        return self._sentences(split, rows, self.ambiguity)

    def references(self, split: str, rows: np.ndarray) -> list[str]:
        """Return the targets as text."""
        return self.text(self.read(split, rows)[1])

    def count_unwritable(self, longest: int) -> dict[str, int]:
        """{}: a translation is as long as its source, and has its words."""
        return {}

    def text(self, tokens: Iterable[np.ndarray]) -> list[str]:
        """Detokenised sentences of rows of words, each up to its end."""
        sentences = []
        for row in tokens:
            ends = np.flatnonzero(row == EOS)
            words = row[: ends[0]] if len(ends) else row
            sentences.append(" ".join(self.words[word] for word in words if word != PAD).replace(" ,", ","))
        return sentences

    def ceiling(self, split: str = "valid") -> float:
        """BLEU of the best translation against this split's references; 100 without ambiguity."""
        rows = np.arange(self.data.samples[split])
        return bleu(self.text(self._sentences(split, rows, 0.0)[1]), self.references(split, rows))

    def _sentences(self, split: str, rows: np.ndarray, ambiguity: float) -> tuple[np.ndarray, np.ndarray]:
        lex = make_lexicon()

        def draw(name: str) -> np.ndarray:
            return stream.uniform(np, (WORLD, SPLITS[split]), name, rows)

        def choose(name: str, kind: str) -> np.ndarray:
            return (draw(name) * FORMS[kind][0]).astype(int)

        def phrase(place: str) -> Phrase:
            noun = np.searchsorted(lex.nouns[:-1], draw(f"{place}/noun"))
            plural = draw(f"{place}/plural") < PLURAL
            count = np.searchsorted(np.cumsum(ADJECTIVES[:-1]), draw(f"{place}/adjectives"))
            gender, stems = lex.gender[noun], [choose(f"{place}/adjective{i}", "adjective") for i in (0, 1)]
            singular = np.where(gender, lex.word("la"), lex.word("le"))
            source = [lex.form("adjective", stem) * (count > i) for i, stem in enumerate(stems)]
            target = [lex.form("ADJECTIVE", stem, 2 * gender + plural) * (count > i) for i, stem in enumerate(stems)]
            return Phrase(
                [np.where(plural, lex.word("thes"), lex.word("the")), *source, lex.form("noun", noun, plural)],
                [np.where(plural, lex.word("les"), singular), lex.form("NOUN", noun, plural), *target[::-1]],
                plural,
            )

        subject, object_, place = map(phrase, ("subject", "object", "place"))
        stem, preposition = choose("verb", "verb"), choose("preposition", "preposition")
        negated, placed = draw("negated") < NEGATED, draw("placed") < PLACED
        verb, synonym = lex.form("VERB", stem, subject.plural), lex.form("SYNONYM", stem, subject.plural)
        verb = np.where(draw("synonym") < ambiguity, synonym, verb)
        source = [*subject.source, negated * lex.word("not"), lex.form("verb", stem, subject.plural), *object_.source]
        source += [placed * column for column in (lex.form("preposition", preposition), *place.source)]
        target = [placed * column for column in (lex.form("PREPOSITION", preposition), *place.target)]
        target += [placed * lex.word(","), *subject.target, negated * lex.word("ne"), verb, negated * lex.word("pas")]
        return _packed(source), _packed([*target, *object_.target])


class Phrase(NamedTuple):
    """Noun phrases as columns of words, 0 where one is absent, in both languages."""

    source: list[np.ndarray]
    target: list[np.ndarray]
    plural: np.ndarray


def _packed(columns: list[np.ndarray]) -> np.ndarray:
    """Columns of words as rows: absent words, which are PAD, make room, and EOS follows the last one."""
    words = np.stack([*columns, np.full(len(columns[0]), EOS)], 1).astype(np.int32)
    return np.take_along_axis(words, np.argsort(words == PAD, 1, kind="stable"), 1)


make = Grammar
