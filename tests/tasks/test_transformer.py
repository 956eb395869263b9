"""Transformer: sizes without allocation, the same numbers and the same words in both backends, its ladder."""

import math
from typing import Any

import engines
import numpy as np
import pytest
from abstract import check_torch, count_gradients, count_parameters, trace_jax
from engines import gap, weights

from suite.contract import Data, UserError
from suite.tasks.transformer import Translation
from suite.tasks.transformer.architecture import EOS, PAD, UNKNOWN, Architecture, encode_positions
from suite.tasks.transformer.grammar import Grammar

BASE = {"vocabulary": 32_000, "depth": 6, "width": 512, "heads": 8, "feed_forward": 2048}
BIG = BASE | {"width": 1024, "heads": 16, "feed_forward": 4096}
ENFR = BIG | {"feed_forward": 8192}
SMALL = {"depth": 1, "width": 16, "heads": 2, "feed_forward": 24}


def task(pairs: Any = None, *, network: dict[str, Any] | None = None, **options: Any) -> Translation:
    pairs = pairs or Grammar(valid=6)
    shape = Architecture(pairs.vocabulary, **(SMALL | (network or {})))
    defaults = {"batch_size": 8, "eval_batch_size": 4, "targets": [90], "extra": 2}
    return Translation(pairs, architecture=shape, **(defaults | options))


class Few:
    """Pairs of random sentences over nine words: a hardly trained network ends some translations, and not others."""

    vocabulary = 9
    data = Data("generated", "few", "1", {"train": 64, "valid": 12})

    def lengths(self, split: str) -> tuple[int, int]:
        return 8, 8

    def read(self, split: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        drawn = np.stack([np.random.default_rng([len(split), row]).integers(4, 9, (2, 8)) for row in rows])
        drawn[:, 0, -1] = drawn[np.arange(len(rows)), 1, rows % 8] = EOS
        drawn[:, 1] *= np.cumsum(drawn[:, 1] == EOS, 1) - (drawn[:, 1] == EOS) == 0
        source, target = drawn.astype(np.int32).swapaxes(0, 1)
        return source, target

    def references(self, split: str, rows: np.ndarray) -> list[str]:
        return self.text(self.read(split, rows)[1])

    def count_unwritable(self, longest: int) -> dict[str, int]:
        return {}

    def text(self, tokens: Any) -> list[str]:
        return [" ".join(str(word) for word in row if word > UNKNOWN) for row in tokens]


def engine(backend: str, made: Translation, optimizer: str = "sgd", **changes: Any) -> Any:
    settings = engines.change(
        engines.config(optimizer, backend, **changes), {"task": {"module": "suite.tasks.transformer"}}
    )
    return engines.engine(settings, made)


@pytest.mark.parametrize(
    "sizes, tying, parameters",
    [
        (BASE, "none", 44_138_496 + 3 * 32_000 * 512),  # 93,290,496: the talk's 93.3M
        (BASE, "all", 44_138_496 + 32_000 * 512),
        (BIG, "all", 209_125_376),
        (BIG, "decoder", 241_893_376),
        (BIG, "none", 274_661_376),
        (ENFR, "decoder", 277_069_824 + 2 * 32_000 * 1024),  # 342.6M: T2T's transformer_big_enfr
        (ENFR, "none", 277_069_824 + 3 * 32_000 * 1024),  # 375.4M
    ],
)
def test_published_parameter_counts(sizes: dict[str, int], tying: str, parameters: int) -> None:
    assert count_parameters(Architecture(**sizes, tying=tying).shapes()) == parameters


def test_pre_norm_has_two_more_layer_norms() -> None:
    post, pre = (count_parameters(Architecture(**BASE, norm=norm).shapes()) for norm in ("post", "pre"))
    assert pre - post == 2 * 2 * 512


@pytest.mark.parametrize("options", [{"tying": "none"}, {"tying": "decoder", "norm": "pre"}, {"tying": "all"}], ids=str)
def test_base_in_torch_is_as_described(options: dict[str, str]) -> None:
    from suite.tasks.transformer.torch import Transformer

    shape = Architecture(**BASE, **options)
    model = check_torch(lambda: Transformer(shape, smoothing=0.0, positions=8), shape.shapes())
    assert set(shape.layers()) <= set(dict(model.named_modules()))


def test_base_in_jax_takes_what_is_described() -> None:
    from suite.tasks.transformer.jax import Transformer

    shape = Architecture(**BASE, dropout=0.1)
    words, number = np.zeros((4, 20), np.int32), np.arange(4, dtype=np.int32)
    batch = {"source": words, "target": words, "index": number, "weight": np.ones(4, np.float32)}
    model, key = Transformer(shape, 0.1, 70), np.zeros(2, np.uint32)
    outputs, _ = trace_jax(model, shape.shapes(), batch, key=key)
    assert outputs["logits"].shape == (4, 20, 32_000)
    assert count_gradients(model, shape.shapes(), batch, key=key) == 93_290_496


def test_a_shared_matrix_is_no_one_layers() -> None:
    layers = {tying: Architecture(**BASE, tying=tying).layers() for tying in ("none", "decoder", "all")}
    assert {name: layer.kind for name, layer in layers["none"].items() if "." not in name} == {
        "source_embedding": "embedding",
        "target_embedding": "embedding",
        "output": "linear",
    }
    assert [name for name in layers["decoder"] if "." not in name] == ["source_embedding"]
    assert len(layers["all"]) == 6 * (4 + 2) + 6 * (4 + 4 + 2)


def test_positions_are_the_papers() -> None:
    """PE(pos, 2i) = sin(pos / 10000**(2i / d)), PE(pos, 2i + 1) its cosine."""
    made = encode_positions(50, 16)
    assert made[7, 4] == pytest.approx(math.sin(7 / 10000 ** (4 / 16)))
    assert made[7, 5] == pytest.approx(math.cos(7 / 10000 ** (4 / 16)))


def test_sizes_that_make_no_network_are_refused() -> None:
    with pytest.raises(UserError, match="heads=3"):
        Architecture(**(BASE | {"heads": 3}))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3}], ids=str)
def test_both_backends_write_the_same_words(options: dict[str, Any]) -> None:
    """On two devices as well; some sentences end and others do not."""
    written, scores = [], []
    for backend, world in (("torch", 1), ("jax", 1), ("jax", 2)):
        made = task(Few(), network={"tying": "none"}, **options)
        one = engine(backend, made, "adamw", world=world)
        engines.advance(one, range(3))
        batches = [made.batch("valid", 0, index) for index in range(made.batches("valid"))]
        parts = list(one.evaluate(batches, made.generate))
        assert all(part["written"].shape == (4, 8 + 2) for part in parts)
        written.append(np.concatenate([part["written"] for part in parts]))
        scores.append(made.score(parts))
    assert len(np.unique(written[0], axis=0)) > 3 and 0 < (written[0] == EOS).any(1).sum() < 12
    assert np.array_equal(written[0], written[1]) and np.array_equal(written[0], written[2])
    assert scores[0]["bleu"] == scores[1]["bleu"] and scores[0]["loss"] == pytest.approx(scores[1]["loss"], abs=1e-10)


@pytest.mark.parametrize(
    "backend", [pytest.param("torch", marks=pytest.mark.quick), pytest.param("jax", marks=pytest.mark.slow)]
)
def test_neither_padding_nor_the_other_sentences_are_seen(backend: str) -> None:
    """Wider padding changes no loss, and halves of a batch write what the whole one does."""
    made = task(Few(), network={"tying": "none"}, beam=3)
    one = engine(backend, made)
    batch = made.batch("valid", 0, 1)
    wider = {name: np.pad(batch[name], ((0, 0), (0, 3))) for name in ("source", "target")}
    narrow, wide = one.evaluate([batch, batch | wider])
    assert np.abs(narrow["loss"] - wide["loss"]).max() < 1e-12 and np.array_equal(narrow["words"], wide["words"])
    halves = [made.batch("valid", 0, 1, rank, 2) for rank in range(2)]
    whole, *parts = one.evaluate([batch, *halves], made.generate)
    assert np.array_equal(np.concatenate([part["written"] for part in parts]), whole["written"])


@pytest.mark.sample(2)
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("backend", engines.BACKENDS)
def test_cached_decoding_is_the_full_forward_pass(backend: str, norm: str) -> None:
    """Fed with the greedy translation, the whole network gives each of its words a likelihood that no other exceeds."""
    made = task(network={"depth": 2, "norm": norm, "tying": "none"})
    one = engine(backend, made)
    batch = made.batch("valid", 0, 0)
    steps: list[np.ndarray] = []

    def kept(batch: Any, start: Any, advance: Any) -> dict[str, np.ndarray]:
        def noted(*arguments: Any) -> Any:
            scores, state = advance(*arguments)
            steps.append(scores)
            return scores, state

        return made.generate(batch, start, noted)

    written = next(iter(one.evaluate([batch], kept)))["written"]
    words = np.where(written == PAD, EOS, written)  # the loss leaves PAD out
    assert len(steps) > 1
    for length in range(1, len(steps) + 1):
        begun = np.where(np.arange(words.shape[1]) < length, words, PAD)
        again = next(iter(one.evaluate([batch | {"target": begun}])))
        likelihood = -sum(np.take_along_axis(s, words[:, [t]], 1)[:, 0] for t, s in enumerate(steps[:length]))
        assert np.abs(again["loss"] - likelihood).max() < 1e-10
    for t, scores in enumerate(steps):
        live = (written[:, :t] != EOS).all(1) if t else np.ones(len(written), bool)
        assert np.array_equal(scores.argmax(1)[live], written[live, t])


@pytest.mark.quick
def test_the_loss_is_the_smoothed_one_over_words() -> None:
    """(1 - ε) of the word's and ε of the mean cross-entropy; padding and samples of weight 0 count for nothing."""
    import torch

    from suite.tasks.transformer.torch import make

    model = make(task(smoothing=0.2))
    generator = np.random.default_rng(0)
    logits = torch.from_numpy(generator.normal(size=(3, 4, 7)))
    target = torch.tensor([[4, 5, EOS, PAD], [6, EOS, PAD, PAD], [4, 4, 4, EOS]])
    batch = {"target": target, "weight": torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)}
    total, weight = model.loss({"logits": logits, "target": target, "smoothing": torch.full((3,), 0.2)}, batch)
    each = logits.numpy() - np.log(np.exp(logits.numpy()).sum(-1, keepdims=True))
    places = [(0, 0, 4), (0, 1, 5), (0, 2, EOS), (1, 0, 6), (1, 1, EOS)]
    expected = -sum(0.8 * each[n, t, word] + 0.2 * each[n, t].mean() for n, t, word in places)
    assert float(total) == pytest.approx(expected, rel=1e-6) and float(weight) == len(places)


@pytest.mark.slow
def test_words_drawn_from_the_model_agree() -> None:
    """One update that K-FAC makes from sampled words, without smoothing, is the same in both backends."""
    ends = []
    for backend in engines.BACKENDS:
        one = engine(backend, task(network={"tying": "none"}, smoothing=0.1), "kfac", hyper={"fisher": "sampled"})
        engines.advance(one, range(2))
        ends.append(weights(one))
    assert gap(*ends) <= 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("backend", engines.BACKENDS)
def test_the_default_run_reaches_its_target(backend: str, suite_command: Any) -> None:
    words = ["+task=transformer", f"backend={backend}", "track=none", "require=target"]
    done = suite_command(*words, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
