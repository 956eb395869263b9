"""BERT: published sizes without allocation, the best score there can be, the network in both frameworks."""

import dataclasses
import itertools
from typing import Any

import bayes
import engines
import numpy as np
import pytest
from abstract import check_torch, count_gradients, count_parameters
from berts import engine, task

from suite.settings import configure
from suite.tasks.bert import hmm, wordpiece
from suite.tasks.bert.architecture import Architecture
from suite.tasks.bert.sample import Hiding, expand_records, make_record_type

COUNTS = {"base": 110_106_428, "large": 336_226_108, "enlarged": 2_457_142_844}  # both heads, 30,522 pieces


def published(variant: str) -> Architecture:
    node = configure.resolve(["task=bert", f"task.variant={variant}"]).task.options()
    sizes = {f.name: node[f.name] for f in dataclasses.fields(Architecture) if f.name in node and f.name != "sparsity"}
    return Architecture(**(sizes | {"vocabulary": 30_522, "next_sentence": True}))


# ------------------------------------------------------------------------------------------------------- sizes
@pytest.mark.parametrize("variant", COUNTS)
def test_published_sizes_from_the_description_and_in_torch(variant: str) -> None:
    from suite.tasks.bert.torch import Network

    at = published(variant)
    assert count_parameters(at.shapes()) == COUNTS[variant]
    check_torch(lambda: Network(at, next_weight=1.0), at.shapes())


@pytest.mark.parametrize("variant", ["base", "enlarged"])
def test_published_sizes_in_jax(variant: str) -> None:
    """An abstract gradient of the loss has every parameter."""
    from suite.tasks.bert.jax import Network

    at, batch = published(variant), task("next_sentence=true").batch("train", 0, 0)
    assert count_gradients(Network(at, 1.0), at.shapes(), batch) == COUNTS[variant]


def test_plan_of_the_published_size_needs_no_data(suite: Any) -> None:
    code, said = suite("plan", "+task=bert", "scale=paper", "optimizer=adamw")
    assert code == 1 and "parameters  336,226,108," in said  # data and a GPU are missing
    assert "missing: data: no directory of pre-training records" in said


def test_encoder_matrices_are_named_alike() -> None:
    """Whoever prunes or counts FLOPs finds them by name: six in each layer, nothing else."""
    sizes = published("base")
    shapes = sizes.shapes()
    found = [name for name, spec in shapes.items() if name.startswith("encoder.") and len(spec.shape) == 2]
    named = {f"{name}.weight": shape for layer in range(sizes.layers) for name, shape in sizes.matrices(layer).items()}
    assert sorted(found) == sorted(named) and len(found) == 6 * sizes.layers
    assert all(shapes[name].shape == shape for name, shape in named.items())


def test_deep_networks_start_smaller_where_they_write_into_the_residual_stream() -> None:
    sizes = dataclasses.replace(published("enlarged"), layers=2)
    scaled = {n for n, s in sizes.shapes().items() if s.initializer == f"truncated_normal({0.02 / 2!r})"}
    assert scaled == {f"encoder.{layer}.{name}.weight" for layer in range(2) for name in ("out", "down")}


def test_curvature_layers_are_called_once_and_spare_the_tied_table() -> None:
    made = task("next_sentence=true")
    one, calls = engine("torch", made), []
    for name in made.layers():
        one.model.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    one.step(0, made.batch("train", 0, 0), {})
    assert sorted(calls) == sorted(made.layers()) and "word" not in calls
    matrices = {n for n, spec in made.shapes().items() if len(spec.shape) == 2}
    assert matrices - {layer.parameters[0] for layer in made.layers().values()} == {"word.weight"}


# ----------------------------------------------------------------------------------------- generated language
def test_a_row_of_the_language_does_not_depend_on_the_others() -> None:
    few, many = (hmm.generate_records("train", count, 32, Hiding(0.15, 6), True) for count in (8, 40))
    assert np.array_equal(few, many[:8]) and not np.array_equal(few[0], few[1])
    assert not np.array_equal(few, hmm.generate_records("valid", 8, 32, Hiding(0.15, 6), True))


def test_every_word_is_one_piece_and_goes_through_text() -> None:
    pieces, words = hmm.make_wordpiece(), hmm.make_language().words
    assert len(set(words)) == hmm.WORDS
    assert [len(ids) for ids in pieces.encode(words)] == [1] * hmm.WORDS
    rows = hmm.generate_records("train", 8, 32, Hiding(0.15, 6), False)
    batch = expand_records(rows)
    original = rows["tokens"].astype(int)
    np.put_along_axis(original, batch["position"][:, :5], batch["label"][:, :5], 1)
    for row in original:
        said = pieces.decode(row[1:-1])
        assert set(said.split()) <= set(words)
        assert np.array_equal(pieces.encode([said])[0], row[1:-1])


@pytest.mark.quick
def test_pairs_have_two_segments_and_half_of_them_do_not_belong_together() -> None:
    rows = hmm.generate_records("train", 512, 32, Hiding(0.15, 6), True)
    batch = expand_records(rows)
    assert abs(batch["random_next"].mean() - 0.5) < 0.1
    separators = (rows["tokens"] == 3) | np.array([np.isin(np.arange(32), [s - 1, 31]) for s in rows["second"]])
    assert separators[np.arange(512), rows["second"] - 1].all()
    assert np.array_equal(batch["segment"].sum(1), rows["length"] - rows["second"])
    assert not hmm.generate_records("train", 8, 32, Hiding(0.15, 6), False)["random_next"].any()


@pytest.mark.quick
def test_the_padding_is_not_visible() -> None:
    rows = np.zeros(2, make_record_type(8, 2))
    rows["length"], rows["second"] = (5, 8), (3, 8)
    batch = expand_records(rows)
    assert batch["visible"].tolist() == [[True] * 5 + [False] * 3, [True] * 8]
    assert batch["segment"].tolist() == [[0, 0, 0, 1, 1, 0, 0, 0], [0] * 8]


def test_best_prediction_equals_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two states, three words, four places of which two are chosen: every history summed up."""
    transition, emission = np.array([[0.9, 0.1], [0.3, 0.7]]), np.array([[0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
    tiny = hmm.Language(transition, np.array([0.75, 0.25]), emission, np.zeros((2, 3), int), ["a", "b", "c"])
    pieces = wordpiece.WordPiece([*wordpiece.SPECIAL, "a", "b", "c"])
    for name, value in (("make_language", lambda: tiny), ("make_wordpiece", lambda: pieces), ("TOPICS", 2)):
        monkeypatch.setattr(bayes, name, value)
    rows = np.zeros(2, hmm.make_record_type(7, 2))
    rows["tokens"] = [[2, 4, 6, 3, 7, 5, 3], [2, 5, 1, 3, 4, 7, 3]]
    rows["length"], rows["second"], rows["count"], rows["position"] = 7, 4, 2, [[1, 4], [2, 4]]
    words, together = bayes.compute_posteriors(rows)

    def channel(seen: int, word: int, chosen: bool) -> float:
        return 0.8 * (seen == 4) + 0.1 * (seen == word + 5) + 0.1 / 8 if chosen else float(seen == word + 5)

    for row, posterior, random_next in zip(rows, words, together, strict=True):
        seen = row["tokens"][[1, 2, 4, 5]]
        found, apart = np.zeros((2, 3)), np.zeros(2)
        for said in itertools.product(range(3), repeat=4):
            prior = np.zeros(2)
            for states in itertools.product(range(2), repeat=4):
                for elsewhere in range(2):
                    p = 0.5 * tiny.stationary[states[0]]
                    for t, state in enumerate(states):
                        if t:
                            fresh = elsewhere and t == 2
                            p *= tiny.stationary[state] if fresh else transition[states[t - 1], state]
                        p *= emission[state, said[t]]
                    prior[elsewhere] += p
            for chosen in itertools.combinations(range(4), 2):
                p = np.prod([channel(s, w, t in chosen) for t, (s, w) in enumerate(zip(seen, said, strict=True))])
                apart += p * prior
                for asked, place in enumerate(row["position"]):
                    t = [1, 2, 4, 5].index(place)
                    found[asked, said[t]] += p * prior.sum() * (t in chosen)
        assert np.allclose(posterior, found / found.sum(1, keepdims=True), atol=1e-12)
        assert abs(random_next - apart[1] / apart.sum()) < 1e-12


def test_best_scores_are_those_of_the_card() -> None:
    options = configure.resolve(["task=bert"]).task.source.plain()
    hiding = Hiding(0.15, 10)
    best = bayes.compute_best_score(hmm.generate_records("valid", options["valid"], 64, hiding, False))
    assert best == pytest.approx({"mlm_loss": 3.239, "mlm_accuracy": 26.27}, abs=0.005)
    best = bayes.compute_best_score(hmm.generate_records("valid", options["valid"], 64, hiding, True))
    assert best == pytest.approx({"mlm_loss": 3.257, "mlm_accuracy": 26.04, "nsp_accuracy": 85.94}, abs=0.005)


# ------------------------------------------------------------------------------------------------ the network
@pytest.mark.parametrize("pre_norm", [False, True])
def test_a_layer_of_the_encoder_is_torchs_own(pre_norm: bool) -> None:
    import torch

    from suite.tasks.bert.torch import EncoderLayer

    torch.manual_seed(0)
    sizes = Architecture(100, 1, hidden=16, heads=4, intermediate=24, positions=8, pre_norm=pre_norm)
    ours = EncoderLayer(sizes, 0)
    theirs = torch.nn.TransformerEncoderLayer(
        16, 4, 24, 0.0, lambda x: torch.nn.functional.gelu(x, approximate="tanh"), 1e-12, True, pre_norm
    )
    attention, parts = theirs.self_attn, (ours.query, ours.key, ours.value)
    weights = {
        "in_proj_weight": torch.cat([p.weight for p in parts]),
        "in_proj_bias": torch.cat([p.bias for p in parts]),
    }
    attention.load_state_dict(weights | {f"out_proj.{name}": value for name, value in ours.out.named_parameters()})
    for mine, its in (("up", "linear1"), ("down", "linear2"), ("norm1", "norm1"), ("norm2", "norm2")):
        theirs.get_submodule(its).load_state_dict(ours.get_submodule(mine).state_dict())
    x, visible = torch.randn(3, 8, 16), torch.arange(8) < torch.tensor([8, 5, 2])[:, None]
    expected = theirs(x, src_key_padding_mask=~visible)
    assert torch.allclose(ours(x, visible[:, None, None], lambda y, name: y), expected, atol=1e-5)


@pytest.mark.parametrize("backend", [pytest.param("torch", marks=pytest.mark.quick), "jax"])
def test_what_is_padded_or_not_asked_for_changes_nothing(backend: str) -> None:
    """Tokens behind the end, and labels and positions behind the last prediction; in loss, gradient and score."""
    made = task("next_sentence=true")
    batch = made.batch("train", 0, 0)
    batch["visible"][:, 20:], batch["masked"][:, 3:] = False, 0.0
    other = {name: value.copy() for name, value in batch.items()}
    batch["position"] %= 20
    other["position"] %= 20
    other["tokens"][:, 20:], other["label"][:, 3:], other["position"][:, 3:] = 7, 8, 9
    one, two = engine(backend, made), engine(backend, made)
    losses = [float(each.losses([each.step(0, b, {})])[0]) for each, b in ((one, batch), (two, other))]
    assert abs(losses[0] - losses[1]) < 1e-12 and engines.gap(engines.weights(one), engines.weights(two)) < 1e-12
    scores = [made.score(one.evaluate([b])) for b in (batch, other)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-9)


@pytest.mark.parametrize("backend", engines.BACKENDS)
def test_the_loss_is_the_mean_over_hidden_words_plus_the_mean_over_pairs(backend: str) -> None:
    """Also for label 0 (`ignore_index=0` would drop it), and not a mean of means where samples hide unequally many."""
    made = task("next_sentence=true")
    batch = made.batch("train", 0, 0)
    batch["random_next"][:], batch["masked"][::2, 2:] = 0, 0.0
    one = engine(backend, made)
    sums = next(iter(one.evaluate([batch])))
    score = made.score([sums])
    masks = batch["masked"].sum()
    assert score["mlm_loss"] == pytest.approx(sums["mlm_loss"].sum() / masks, abs=1e-12) and score["nsp_loss"] > 0.1
    loss = float(one.losses([one.step(0, batch, {})])[0])
    expected = score["mlm_loss"] + made.hidden_each * sums["nsp_loss"].sum() / masks
    assert loss == pytest.approx(expected, abs=1e-9) and made.hidden_each == 5.0  # hidden words of 32 tokens


@pytest.mark.parametrize("backend", engines.BACKENDS)
def test_the_decoder_is_the_table_of_words(backend: str) -> None:
    """A word that occurs in no input still learns, as a wrong answer."""
    made = task()
    batch = made.batch("train", 0, 0)
    absent = np.setdiff1d(np.arange(made.architecture.vocabulary), np.union1d(batch["tokens"], batch["label"]))
    one = engine(backend, made, hyper={"lr": 1.0})
    before = engines.weights(one)["word.weight"]
    one.losses([one.step(0, batch, {})])
    assert (np.abs(engines.weights(one)["word.weight"] - before)[absent].max(1) > 0).all()


def test_every_hidden_word_counts_once_in_the_score() -> None:
    made = task()
    parts = [
        {"weight": np.array([1.0, 1.0]), "masks": np.array([1.0, 3.0]), "mlm_hits": np.array([1.0, 0.0])},
        {"weight": np.array([1.0, 0.0]), "masks": np.array([4.0, 9.0]), "mlm_hits": np.array([3.0, 9.0])},
    ]
    parts = [part | {"mlm_loss": 2.0 * part["masks"]} for part in parts]
    assert made.score(parts) == {"mlm_accuracy": 50.0, "mlm_loss": 2.0}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "kfac"])
def test_five_updates_agree(optimizer: str) -> None:
    ends = []
    for backend in engines.BACKENDS:
        one = engine(backend, task("next_sentence=true", "dropout=0.1"), optimizer, hyper={"lr": 1e-3})
        engines.advance(one, range(5))
        ends.append(engines.weights(one))
    assert engines.gap(*ends) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("backend", engines.BACKENDS)
def test_the_default_optimizer_reaches_the_last_target(suite_command: Any, backend: str) -> None:
    words = ("+task=bert", f"backend={backend}", "track=none", "threads=1", "require=target")
    assert suite_command(*words, timeout=900).returncode == 0
