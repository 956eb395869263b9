"""Search by hand-made tables of scores, the generated languages by their rules, BLEU by cases worked by hand."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from suite.tasks.transformer import search
from suite.tasks.transformer.architecture import BOS, EOS, PAD
from suite.tasks.transformer.grammar import FORMS, Grammar, make_lexicon
from suite.tasks.transformer.metric import bleu, format_signature


def table(scores: dict[tuple[int, ...], dict[int, float]], words: int) -> search.Advance:
    """A model that looks up what follows a beginning; the state is each row's beginning."""

    def advance(state: Any, rows: np.ndarray, token: np.ndarray, position: int) -> tuple[np.ndarray, Any]:
        state = [(*state[row], int(word)) for row, word in zip(rows, token, strict=True)]
        assert all(len(begun) == position + 1 for begun in state)
        chances = np.full((len(state), words), 1e-9)
        for row, begun in enumerate(state):
            for word, chance in scores.get(begun[1:], {EOS: 1.0}).items():
                chances[row, word] = chance
        return np.log(chances), state

    return advance


A, B, C = 4, 5, 6
# greedy takes A (0.6) and then has only poor ways on; the best sentence is B C with 0.4 · 0.9 · 1
GARDEN = {(): {A: 0.6, B: 0.4}, (A,): {A: 0.35, B: 0.33, C: 0.32}, (B,): {C: 0.9, A: 0.1}}


def test_beam_finds_what_greedy_misses() -> None:
    model, start = table(GARDEN, 7), [(), ()]
    assert search.greedy_search(start, model, sentences=2, length=4).tolist() == [[A, A, EOS, PAD]] * 2
    found = search.beam_search(start, model, sentences=2, length=4, width=2, alpha=0.6)
    assert found.tolist() == [[B, C, EOS, PAD]] * 2


def test_the_length_penalty_prefers_longer_sentences() -> None:
    """Short: log 0.5; long: log 0.45. Wu et al. 2016, eq. 14: ((5 + n) / 6)**α."""
    model = table({(): {EOS: 0.5, A: 0.49}, (A,): {B: 0.95, C: 0.05}}, 7)
    plain = search.beam_search([()], model, sentences=1, length=5, width=2, alpha=0.0)
    assert plain.tolist() == [[EOS, PAD, PAD, PAD, PAD]]
    assert search.beam_search([()], model, sentences=1, length=5, width=2, alpha=0.6).tolist() == [
        [A, B, EOS, PAD, PAD]
    ]
    assert search.length_penalty(1, 0.6) == 1.0 and search.length_penalty(7, 1.0) == 2.0


def noise(words: int, seed: int) -> search.Advance:
    """Log-probabilities that depend on a row's whole beginning, and on nothing else."""

    def advance(state: Any, rows: np.ndarray, token: np.ndarray, position: int) -> tuple[np.ndarray, Any]:
        state = [(*state[row], int(word)) for row, word in zip(rows, token, strict=True)]
        logits = np.stack([np.random.default_rng([seed, *begun]).normal(size=words) for begun in state])
        return logits - np.log(np.exp(logits).sum(1, keepdims=True)), state

    return advance


def starts(numbers: range) -> list[tuple[int, ...]]:
    return [(number,) for number in numbers]


def test_beam_of_one_is_greedy() -> None:
    for seed in range(5):
        one = search.greedy_search(starts(range(8)), noise(9, seed), sentences=8, length=12)
        other = search.beam_search(starts(range(8)), noise(9, seed), sentences=8, length=12, width=1, alpha=0.6)
        assert np.array_equal(one, other) and (one == EOS).any() and not (one == EOS).any(1).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_is_exhaustive(seed: int) -> None:
    """As wide as there are sentences of up to four words, it finds the best of them all."""
    advance, words = noise(5, seed), 5

    def spell(state: Any, begun: list[int], score: float) -> Iterator[tuple[float, list[int]]]:
        scores, state = advance(state, np.array([0]), np.array([begun[-1] if begun else BOS]), len(begun))
        for word in range(words):
            total, longer = score + scores[0, word] - 3.0 * (word == EOS) * (len(begun) < 3), [*begun, word]
            if word == EOS:
                yield total / search.length_penalty(len(longer), 0.6), longer
            elif len(longer) < 4:
                yield from spell(state, longer, total)

    def reluctant(*arguments: Any) -> Any:  # makes longer sentences win
        scores, state = advance(*arguments)
        return scores - 3.0 * (np.arange(words) == EOS) * (arguments[3] < 3), state

    best = max(spell([(0,)], [], 0.0))[1]
    found = search.beam_search([(0,)], reluctant, sentences=1, length=4, width=150, alpha=0.6)[0]
    assert len(best) == 4 and found.tolist() == best


def test_a_sentence_is_searched_alone() -> None:
    for width in (1, 3):
        options = {"length": 12, "width": width, "alpha": 0.6}
        whole = search.beam_search(starts(range(6)), noise(9, 1), sentences=6, **options)
        parts = [search.beam_search([(n,)], noise(9, 1), sentences=1, **options) for n in range(6)]
        assert np.array_equal(whole, np.concatenate(parts))


def translate(text: str) -> str:
    """Apply the grammar's rules once more, one sentence at a time, from the lexicon."""
    lex, words = make_lexicon(), text.split()
    number = {word: n for n, word in enumerate(lex.words)}

    def stem(word: str, kind: str) -> int:
        return (number[word] - lex.start[kind]) // len(FORMS[kind][1])

    def form(kind: str, stem: int, ending: str = "") -> str:
        return lex.words[lex.start[kind] + stem * len(FORMS[kind][1]) + FORMS[kind][1].index(ending)]

    def phrase() -> tuple[list[str], bool]:
        plural, adjectives = words.pop(0) == "thes", []
        while words[0].endswith("y"):
            adjectives.append(stem(words.pop(0), "adjective"))
        noun = stem(words.pop(0), "noun")
        feminine = bool(lex.gender[noun])
        ending = ("e" if feminine else "") + ("s" if plural else "")
        agreeing = [form("ADJECTIVE", each, ending) for each in reversed(adjectives)]
        article = "les" if plural else "la" if feminine else "le"
        return [article, form("NOUN", noun, "x" if plural else ""), *agreeing], plural

    subject, plural = phrase()
    negated = words[0] == "not" and bool(words.pop(0))
    assert words[0].endswith("z") != plural
    verb = [form("VERB", stem(words.pop(0), "verb"), "nt" if plural else "t")]
    clause = [*subject, *(["ne", *verb, "pas"] if negated else verb), *phrase()[0]]
    if words:
        place = [form("PREPOSITION", stem(words.pop(0), "preposition")), *phrase()[0]]
        return f"{' '.join(place)}, {' '.join(clause)}"
    return " ".join(clause)


def test_the_translation_follows_the_rules() -> None:
    pairs = Grammar()
    source, target = (pairs.text(side) for side in pairs.read("train", np.arange(2000)))
    assert [translate(text) for text in source] == target and len(set(source)) > 1950
    assert 0.2 < np.mean(["pas" in text.split() for text in target]) < 0.3
    assert 0.45 < np.mean(["," in text for text in target]) < 0.55


def test_a_sentence_does_not_depend_on_the_others() -> None:
    pairs = Grammar()
    whole = pairs.read("valid", np.arange(50))
    assert np.array_equal(pairs.read("valid", np.array([31, 7]))[1], whole[1][[31, 7]])
    assert not np.array_equal(pairs.read("train", np.arange(50))[0], whole[0])
    for side, length in zip(whole, pairs.lengths("valid"), strict=True):
        assert side.shape == (50, length) and side.dtype == np.int32
        assert ((side == EOS).sum(1) == 1).all() and (np.sort(side == PAD, 1) == (side == PAD)).all()


def test_ambiguity_lowers_the_ceiling_by_known_words() -> None:
    """References differ from the best translation in the verb alone, in that share of the sentences."""
    assert Grammar().ceiling() == pytest.approx(100.0)
    clear, unclear = Grammar(valid=2000), Grammar(valid=2000, ambiguity=0.25)
    rows = np.arange(2000)
    differ = clear.read("valid", rows)[1] != unclear.read("valid", rows)[1]
    assert differ.sum(1).max() == 1 and differ.any(1).mean() == pytest.approx(0.25, abs=0.03)
    assert unclear.ceiling() == pytest.approx(91.0, abs=1.0)
    assert np.array_equal(clear.read("valid", rows)[0], unclear.read("valid", rows)[0])


def test_bleu_of_a_case_worked_by_hand() -> None:
    """Precisions 5/6, 3/5, 2/4, 1/3 and no brevity penalty; then one word short, with exp(1 - 6/5)."""
    by_hand = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert bleu(["the cat sat on the mat"], ["the cat is on the mat"]) != pytest.approx(by_hand)
    assert bleu(["a b c d x e"], ["a b c d y e"]) == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert bleu(["a b c d e"], ["a b c d e f"]) == pytest.approx(100 * math.exp(1 - 6 / 5))


def test_bleu_tokenises_and_keeps_case() -> None:
    assert bleu(["Hello, big wide world!"], ["Hello , big wide world !"]) == pytest.approx(100.0)
    assert bleu(["hello, big wide world!"], ["Hello, big wide world!"]) < 90.0
    assert bleu(["say &quot;big wide world&quot; now"], ['say "big wide world" now']) == pytest.approx(
        100.0
    )  # 13a's own


def test_the_signature_is_sacrebleus_and_stands_in_the_data_note() -> None:
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    metric.corpus_score(["a"], [["a"]])
    assert format_signature() == str(metric.get_signature()) and format_signature() in Grammar().data.note
