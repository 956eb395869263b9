"""Shares, limits and counts of the tasks' settings, each worked out from its sentence on the page of settings."""

import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from engines import BACKENDS
from scipy import stats
from small import TASKS, small

from suite import load, stream
from suite.contract import UserError
from suite.launch.job import make_task
from suite.settings import configure
from suite.tasks._data.shapes import Shapes
from suite.tasks._nn import torch as nn_torch
from suite.tasks._nn.jax import batch_norm

both = pytest.mark.parametrize("backend", BACKENDS)
KEY = (3, 17)
Outputs = dict[str, np.ndarray]


def options(name: str, *given: str) -> list[str]:
    """The task's first small form, with these options in the place of its own."""
    names = {option.partition("=")[0] for option in given}
    return [option for option in TASKS[name][0] if option.partition("=")[0] not in names] + [*given]


@functools.cache
def task(name: str, *given: str) -> Any:
    made: Any = make_task(small(name, options(name, *given)))
    if name in ("caffenet", "resnet50"):  # a run's take seconds to paint
        made.images = Shapes(made.images.size, train=1024, valid=32)
    return made


def look(backend: str, made: Any, batch: Outputs, *, train: bool) -> tuple[Outputs, tuple[float, ...]]:
    """Return the outputs of the model at its initial weights, and in training its summed loss and weight."""
    model = load.load_half(f"suite.tasks.{made.name}", backend).make(made)
    initial = {name: made.init(0, name) for name in made.shapes()}
    carry, size = made.carry(len(batch["weight"])), (0.0, 0.0)
    if backend == "torch":
        model.load_state_dict({name: torch.from_numpy(value) for name, value in initial.items()})
        model.train(train)
        given, kept = ({n: torch.from_numpy(v) for n, v in values.items()} for values in (batch, carry))
        outputs, _ = model(given, kept, KEY)
        size = tuple(float(value.detach()) for value in model.loss(outputs, given)) if train else size
        return {name: value.detach().numpy() for name, value in outputs.items()}, size
    buffers = {name: value for name, value in initial.items() if made.shapes()[name].kind == "buffer"}
    params = {name: value for name, value in initial.items() if name not in buffers}

    def run(params: Any, batch: Any) -> Any:
        found = model.apply(
            params, buffers, carry, batch, train=train, key=jnp.asarray(KEY, jnp.uint32), tap=lambda name, x, y: y
        )[0]
        return found, model.loss(found, batch) if train else size

    outputs, size = jax.jit(run)(params, batch)
    return {name: np.asarray(value) for name, value in outputs.items()}, tuple(map(float, size))


# ------------------------------------------------------------------------------------------------ label smoothing
@both
@pytest.mark.parametrize("name", ["caffenet", "cifar10", "resnet50", "transformer"])
def test_smoothing_spreads_its_share_over_all_classes_in_training_only(name: str, backend: str) -> None:
    """A target has 1 - ε of its own class and ε / K of each of all K classes."""
    made, share = task(name, "smoothing=0.3"), 0.3
    batch = made.batch("train", 0, 0)
    outputs, (loss, weight) = look(backend, made, batch, train=True)
    logits = outputs["logits"].astype(np.float64)
    likelihood = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    label = batch["target"] if name == "transformer" else batch["label"]
    own = np.take_along_axis(likelihood, label[..., None].astype(int), -1)[..., 0]
    counts = (label != 0) if name == "transformer" else np.ones(len(label))  # a translation's padding is no word
    expected = -((1 - share) * own + share / logits.shape[-1] * likelihood.sum(-1)) * counts
    assert weight == counts.sum() and loss == pytest.approx(expected.sum(), rel=1e-5)
    assert expected.sum() != pytest.approx(-(own * counts).sum(), rel=1e-4), "the smoothing can be seen"
    plain, valid = task(name, "smoothing=0.0"), made.batch("valid", 0, 0)
    scores = [look(where, each, valid, train=False)[0] for where, each in ((backend, made), ("torch", plain))]
    assert made.score([scores[0]])["loss"] == pytest.approx(plain.score([scores[1]])["loss"], rel=1e-4)


# --------------------------------------------------------------------------------------------------------- dropout
PLACES = {  # where the page says that elements are dropped
    "bert": {"embeddings", *(f"encoder.{layer}.{part}" for layer in (0, 1) for part in ("attention", "out", "down"))},
    "caffenet": {"fc6", "fc7"},
    "frnn": {f"lstm.{layer}/{part}" for layer in (0, 1) for part in ("input", "state", "output")},
    "transformer": {
        *("source", "target", "encoder.0.attention", "encoder.0.feed_forward", "decoder.0.attention"),
        *("decoder.0.source_attention", "decoder.0.feed_forward"),
        *("encoder.0.attention.probabilities", "decoder.0.attention.probabilities"),
        *("decoder.0.source_attention.probabilities", "encoder.0.feed_forward.inner", "decoder.0.feed_forward.inner"),
    },
}


LARGER = {"caffenet": ["hidden=400", "batch_size=32"], "frnn": ["batch_size=32"]}  # so that a tenth of a share is seen


@both
@pytest.mark.parametrize("name", PLACES)
def test_dropout_drops_its_share_at_its_places_in_training_only(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within five deviations of a binomial, over the elements of all places; test_nn.py has what is left of one."""
    kept, sizes = dict[str, int](), dict[str, int]()
    drawn = {"torch": nn_torch.keep, "jax": stream.keep}[backend]

    def count(at: str, mask: np.ndarray) -> None:
        kept[at] = kept.get(at, 0) + int(mask.sum())
        sizes[at] = sizes.get(at, 0) + mask.size

    def watch(*arguments: Any) -> Any:
        mask, at = drawn(*arguments), arguments[-4]
        if backend == "torch":
            count(at, mask.numpy())
        else:
            jax.debug.callback(lambda value: count(at, np.asarray(value)), mask)
        return mask

    monkeypatch.setattr(*((nn_torch, "keep") if backend == "torch" else (stream, "keep")), watch)
    made = task(name, "dropout=0.4", *LARGER.get(name, []))
    look(backend, made, made.batch("train", 0, 0), train=True)
    jax.effects_barrier()
    assert kept.keys() == PLACES[name]
    total = sum(sizes.values())
    assert abs(sum(kept.values()) / total - 0.6) < 5 * (0.6 * 0.4 / total) ** 0.5
    kept.clear()
    look(backend, made, made.batch("valid", 0, 0), train=False)
    jax.effects_barrier()
    assert not kept


# ------------------------------------------------------------------------------------------------------------ BERT
@pytest.mark.parametrize(
    "probability, predictions, hidden",
    [(0.15, 6, 5), (0.15, 3, 3), (0.5, 40, 16), (0.03, 6, 1), (0.0, 6, 1), (1.0, 40, 30)],
)
def test_a_record_hides_its_share_of_tokens_up_to_its_limit(probability: float, predictions: int, hidden: int) -> None:
    """Of 32 tokens, [CLS] and [SEP] counted, of which only the other 30 are hidden; at least one."""
    made = task("bert", f"probability={probability}", f"predictions={predictions}", "next_sentence=false")
    batch = made.batch("train", 0, 0)
    assert batch["masked"].shape == (8, predictions) and (batch["masked"].sum(1) == hidden).all()
    places = [row[:hidden] for row in batch["position"]]
    assert all(len(set(row)) == hidden and min(row) > 0 and max(row) <= 30 for row in map(np.ndarray.tolist, places))


# ------------------------------------------------------------------------------------------------------------ FRNN
def alarm(size: int, place: int, height: float = 1.0) -> np.ndarray:
    return np.where(np.arange(size) == place, height, 0.0)


@pytest.mark.parametrize("left, early, missed", [(0, 0, 1), (5, 0, 1), (6, 0, 0), (49, 0, 0), (50, 1, 0), (99, 1, 0)])
def test_an_alarm_is_missed_in_the_last_30_ms_and_early_before_the_last_250(left: int, early: int, missed: int) -> None:
    """At 5 ms a step, 30 ms are 6 steps and 0.25 s are 50; `left` steps follow the alarm."""
    made = task("frnn", "deadline=0.03", "warning=0.25", "ignore=0.0")
    found = made.areas([alarm(100, 99 - left), np.full(100, 0.5)], [True, False])
    assert (found["early"], found["missed"]) == (early, missed) and found["auc"] == 1 - missed
    batch = made.batch("valid", 0, 0)
    for goal, steps, disrupted in zip(batch["target"], batch["steps"], batch["disrupted"], strict=True):
        after = steps - 1 - np.arange(steps)
        assert np.array_equal(goal[:steps], np.where((after < 50) & disrupted, 1, -1))


@pytest.mark.parametrize("place, area", [(0, 1.0), (19, 1.0), (20, 0.0)])
def test_there_are_no_alarms_in_the_ignored_start(place: int, area: float) -> None:
    """0.1 s are 20 steps: a false alarm counts from the 21st on."""
    made = task("frnn", "ignore=0.1")
    assert made.areas([alarm(100, 80), alarm(100, place, 2.0)], [True, False])["auc"] == area


@pytest.mark.parametrize("glimpse", [0, 7])
def test_so_many_shots_of_the_second_machine_are_trained_on(glimpse: int) -> None:
    """Each machine has 50; those of the second that are left are scored."""
    made = task("frnn", "protocol=glimpse", f"glimpse={glimpse}")
    assert (len(made.splits["train"]), len(made.splits["valid"])) == (50 + glimpse, 50 - glimpse)


# ------------------------------------------------------------------------------------------------------------ DLRM
def test_a_table_has_at_most_so_many_rows_and_ids_are_taken_modulo_them() -> None:
    whole, cut = task("dlrm", "limit=null"), task("dlrm", "limit=50")
    rows, most = np.array(whole.architecture.rows), np.minimum(whole.architecture.rows, 50)
    assert cut.architecture.rows == tuple(most) and rows.min() < 50 < rows.max()
    ids, expected = (made.batch("train", 0, 0)["ids"] for made in (cut, whole))
    starts = [np.concatenate([[0], np.cumsum(counts)[:-1]]) for counts in (most, rows)]
    assert np.array_equal(ids - starts[0], (expected - starts[1]) % most)


# ---------------------------------------------------------------------------------------------------------- images
def test_consecutive_images_are_normalised_by_their_groups_own_statistics() -> None:
    """In both backends as in NumPy, in groups of three of twelve images."""
    x = np.random.default_rng(0).normal(2.0, 3.0, size=(12, 4, 5, 5)).astype(np.float32)
    groups = x.reshape(4, 3, 4, 5, 5).astype(np.float64)
    expected = (groups - groups.mean((1, 3, 4), keepdims=True)) / np.sqrt(groups.var((1, 3, 4), keepdims=True) + 1e-5)
    found = nn_torch.BatchNorm2d(4, group=3).train()(torch.from_numpy(x)).detach().numpy()
    assert np.allclose(found, expected.reshape(x.shape), atol=1e-4)
    buffers = {"n.running_mean": jnp.zeros(4), "n.running_var": jnp.ones(4)}
    theirs, _ = batch_norm(jnp.asarray(x.transpose(0, 2, 3, 1)), buffers, "n", train=True, group=3)
    assert np.allclose(np.asarray(theirs).transpose(0, 3, 1, 2), expected.reshape(x.shape), atol=1e-4)


@pytest.mark.parametrize("name", ["cifar10", "resnet50"])
def test_an_image_changes_its_group_and_no_other(name: str) -> None:
    made = task(name, "bn_group=4", "batch_size=8", *(["blocks=[1,1,1,1]"] if name == "cifar10" else []))
    batch = made.batch("train", 0, 0)
    before = look("torch", made, batch, train=True)[0]["logits"]
    batch["image"][1] *= 2.0
    changed = (look("torch", made, batch, train=True)[0]["logits"] != before).any(1)
    assert changed[:4].all() and not changed[4:].any()


def test_running_mixup_draws_from_the_beta_distribution() -> None:
    """λ is Beta(α, α), by the test of Kolmogorov and Smirnov; it tells 0.4 from 0.6."""
    made = task("resnet50", "mixup=0.4")
    drawn = np.concatenate([made.batch("train", 0, index)["mix"] for index in range(1, 60)])
    assert stats.kstest(drawn, stats.beta(0.4, 0.4).cdf).pvalue > 1e-2
    assert stats.kstest(drawn, stats.beta(0.6, 0.6).cdf).pvalue < 1e-4


# ----------------------------------------------------------------------------------------------------- Transformer
def test_more_than_half_of_the_verbs_cannot_be_ambiguous() -> None:
    """Beyond one half, the synonym would be the better translation."""
    with pytest.raises(UserError, match=r"task\.ambiguity=0\.6: must be at most 0\.5"):
        configure.resolve(["task=transformer", "task.ambiguity=0.6"])
    assert task("transformer", "ambiguity=0.5").pairs.ambiguity == 0.5


@pytest.mark.parametrize("beam, extra", [(1, 0), (1, 3), (3, 5)])
def test_a_translation_exceeds_the_longest_source_by_so_many_words(beam: int, extra: int) -> None:
    """A model that never ends a sentence writes 16 words of the longest source, its end counted, and `extra` more.

    It is asked for as many hypotheses of each sentence as `beam` says.
    """
    made, rows = task("transformer", f"beam={beam}", f"extra={extra}"), set[int]()

    def advance(state: Any, chosen: np.ndarray, token: np.ndarray, position: int) -> tuple[np.ndarray, Any]:
        rows.add(len(chosen))
        scores = np.log(np.linspace(1.0, 2.0, made.architecture.vocabulary))
        scores[:4] = -1e3  # padding, the sentence's beginning and end, and unknown words
        return np.tile(scores, (len(chosen), 1)), state

    batch = made.batch("valid", 0, 0)
    written = made.generate(batch, lambda batch: types.SimpleNamespace(), advance)["written"]
    assert written.shape == (8, 16 + extra) and written.min() > 3 and rows == {8 * beam}
