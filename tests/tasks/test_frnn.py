"""FRNN: streams of shots with a carried state, the network in both backends, and the shot-level metrics."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from abstract import check_torch, count_parameters
from engines import BACKENDS, advance, change, engine
from sampling import mostly_torch

from suite.launch.job import make_task
from suite.settings import configure
from suite.tasks.frnn import FRNN, metric, simulator, trees
from suite.tasks.frnn.architecture import Architecture
from suite.tasks.frnn.shots import Streams
from suite.tasks.frnn.signals import ZERO_D

PUBLISHED = Architecture(14, 2, 64, 128, 3, 3, 2, 128, 200, 2)
SMALL = ["batch_size=4", "eval_batch_size=10", "length=16", "filters=4", "dense=8", "hidden=6", "targets=[2.0]"]


def config(*options: str, backend: str = "torch", **changes: Any) -> dict[str, Any]:
    counts = "task.sources.simulated.counts={single: 40, cross: 20, glimpse: 24}"
    composed = configure.resolve(
        [
            "task=frnn",
            "optimizer=sgd",
            f"backend={backend}",
            counts,
            *(f"task.{option}" for option in (*SMALL, *options)),
        ]
    )
    plain = {"lr": 0.0, "momentum": 0.0, "weight_decay": 0.0}
    return change(composed, {"precision": "float64", "optimizer": plain, **changes})


def task(*options: str) -> Any:
    return make_task(config(*options))


def made(*options: str, backend: str) -> Any:
    settings = config(*options, backend=backend)
    return engine(settings, make_task(settings))


# -------------------------------------------------------------------------------------------------- metric
def peaks(*outputs: list[float], disrupted: list[bool], **limits: int) -> metric.Peaks:
    return metric.collect_peaks([np.array(o) for o in outputs], disrupted, **({"deadline": 2, "warning": 4} | limits))


EARLY, CORRECT, LATE, NONE = [0, 9, 0, 0, 0, 0], [0, 0, 9, 0, 0, 0], [0, 0, 0, 0, 9, 0], [0, 0, 0, 0, 0, 0]


@pytest.mark.quick
@pytest.mark.parametrize(
    "output, region",
    [(EARLY, "early"), (CORRECT, "correct"), (LATE, "late"), (NONE, "none"), ([0, 0, 0, 9, 9, 9], "correct")],
    ids=str,
)
def test_a_shot_counts_at_its_first_alarm(output: list[float], region: str) -> None:
    rates = peaks(output, [0, 1], disrupted=[True, False]).rates(5.0)
    assert [name for name in ("early", "correct", "late", "none") if rates[name]] == [region]
    assert rates["missed"] == (region in ("late", "none")) and rates["false"] == 0


@pytest.mark.quick
def test_early_alarms_are_counted_apart_and_are_not_missed() -> None:
    found = peaks(EARLY, CORRECT, LATE, NONE, [3, 0, 0], disrupted=[True] * 4 + [False])
    assert found.rates(5.0) == {"early": 0.25, "correct": 0.25, "late": 0.25, "none": 0.25, "missed": 0.5, "false": 0.0}
    # two of four shots above the quiet one, two below: the late alarm does not count
    assert found.area() == 0.5


@pytest.mark.quick
def test_the_curve_has_both_ends() -> None:
    """One shot of each kind: three right orders out of four, whatever the values are."""
    false, true, thresholds = peaks([5] * 6, [1] * 6, [3], [0], disrupted=[True, True, False, False]).curve()
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1) and np.all(np.diff(thresholds) < 0)
    assert np.trapezoid(true, false) == 0.75


def test_equal_outputs_count_half() -> None:
    assert peaks([1] * 6, [1] * 6, disrupted=[True, False]).area() == 0.5


@pytest.mark.quick
def test_the_deadline_and_the_ignored_start() -> None:
    late = [0, 0, 0, 0, 9, 9]
    assert peaks(late, [1], disrupted=[True, False]).area() == 0
    assert peaks(late, [1], disrupted=[True, False], deadline=1).area() == 1
    early, noisy = [0, 0, 1, 0, 0, 0], [9, 0]
    assert peaks(early, noisy, disrupted=[True, False]).area() == 0
    assert peaks(early, noisy, disrupted=[True, False], ignore=1).area() == 1
    assert peaks([9, 9], [5, 0], disrupted=[True, False]).area() == 0  # a shot shorter than the deadline is missed


def test_eight_shots_of_alcator_c_mod(shared_data: Path) -> None:
    """FRNN's area of the outputs that DisruptionBench publishes."""
    found: dict[str, Any] = {}
    for split in ("test", "val"):
        found |= json.loads((shared_data / "disruptionbench" / f"example_{split}_shots_res.json").read_text())
    outputs = [np.array(shot["proba_shot"]) for shot in found.values()]
    disrupted = [shot["label_shot"] == 1 for shot in found.values()]
    assert metric.collect_peaks(outputs, disrupted, deadline=3, warning=100).area() == 0.6875


# ----------------------------------------------------------------------------------------------- simulator
def test_a_simulated_shot_does_not_depend_on_how_many_there_are() -> None:
    few, many = simulator.simulate_shots("near", 3, 8), simulator.simulate_shots("near", 9, 8)
    assert np.array_equal(few.values, many.values[:3]) and np.array_equal(few.steps, many.steps[:3])
    assert not np.array_equal(few.values, simulator.simulate_shots("far", 3, 8).values)


@pytest.mark.parametrize("device", simulator.DEVICES)
def test_what_the_simulated_world_offers(device: str) -> None:
    """CARD.md's shares; the true island would be nearly enough for an alarm, and the locked-mode signal is not."""
    world = simulator.simulate_shots(device, 800, 16)
    assert 0.35 < world.disrupted.mean() < 0.5 and 185 < world.steps.mean() < 220
    assert np.isfinite(world.values).all()

    def area(values: np.ndarray) -> float:
        outputs = [value[:steps] for value, steps in zip(values, world.steps, strict=True)]
        return metric.collect_peaks(outputs, world.disrupted, deadline=6, warning=50, ignore=20).area()

    assert area(world.island) > 0.95 > 0.85 > area(world.values[..., ZERO_D.index("lm")]) > 0.75


# ------------------------------------------------------------------------------------------------- streams
def test_every_shot_once_an_epoch_in_one_stream_from_its_first_chunk_to_its_last() -> None:
    chunks = np.array([3, 1, 2, 5, 1, 4, 2])
    streams, seen, running = Streams(chunks, streams=3, seed=1), [], {}
    for index in range(60):
        for stream, (shot, chunk) in enumerate(zip(*streams.at(index), strict=True)):
            assert chunk == 0 or running[stream] == (shot, chunk - 1)
            if stream in running and running[stream][0] != shot:
                assert running[stream][1] == chunks[running[stream][0]] - 1  # the shot before was read to its end
            running[stream] = shot, chunk
            if chunk == 0:
                seen.append(shot)
    for epoch in range(len(seen) // len(chunks) - 1):
        window = seen[epoch * len(chunks) : (epoch + 1) * len(chunks)]
        assert sorted(window) == list(range(len(chunks)))


@pytest.mark.quick
def test_streams_by_random_access() -> None:
    chunks = np.arange(1, 9)
    forward, jumped = Streams(chunks, streams=4, seed=0), Streams(chunks, streams=4, seed=0)
    jumped.at(50)
    for index in range(20):
        assert np.array_equal(forward.at(index), jumped.at(index))
    assert any(not np.array_equal(forward.at(i), Streams(chunks, streams=4, seed=1).at(i)) for i in range(9))


def test_only_training_cuts_the_ends_of_shots() -> None:
    one: FRNN = task()
    whole = one.splits["train"].steps
    assert np.array_equal(
        whole - one.steps, np.where(whole > 16 + 6, 6, 0)
    )  # 30 ms; not where a chunk would not be left
    valid = one.batch("valid", 0, 0)
    assert np.array_equal(valid["mask"].sum(1), one.splits["valid"].steps[:10])
    assert np.array_equal(valid["steps"], one.splits["valid"].steps[:10])


# ------------------------------------------------------------------------------------------------- network
def chained(made: Any, count: int) -> tuple[dict[tuple[int, int], np.ndarray], Any]:
    """Outputs of `count` training batches by (shot, chunk), the state carried along; weights stay as they are."""
    one, found = made.task, {}
    streams = Streams(-(-one.steps // one.length), streams=one.batch_size, seed=0)
    for index in range(count):
        batch = one.batch("train", 0, index)
        if hasattr(made, "model"):
            import torch

            made.model.train()
            with torch.no_grad():
                outputs, carry = made.model(made._micro(batch)[0], made.carry[0], (0, index))
            made.carry = [carry]
            output = outputs["output"].numpy()
        else:
            with made._mode():
                rest = made.layout.inputs(made.seed, batch, index, {})
                outputs, _, carry = made.maths.model.apply(
                    made.run["params"],
                    {},
                    made.run["carry"]["owned"],
                    rest[0],
                    train=True,
                    key=None,
                    tap=lambda n, x, y: y,
                )
                made.run["carry"] = {"owned": carry}
                output = np.asarray(outputs["output"])
        for row, (shot, chunk) in enumerate(zip(*streams.at(index), strict=True)):
            found[int(shot), int(chunk)] = output[row, : batch["steps"][row]]
    return found, one


@pytest.mark.quick
@mostly_torch
def test_the_state_goes_on_from_batch_to_batch(backend: str) -> None:
    one = made(backend=backend)
    states = []
    for step in range(3):
        states.append({key: value.copy() for key, value in one.snapshot()[0].items() if "carry" in key})
        advance(one, range(step, step + 1))
    assert states[0]
    for before, after in itertools.pairwise(states):
        assert any((before[key] != after[key]).any() for key in before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_chunks_as_in_one_piece(backend: str) -> None:
    """A shot read in chunks by a stream, after other shots, gives what it gives alone and whole."""
    found, one = chained(made(backend=backend), 16)
    train, checked = one.splits["train"], 0
    whole = made("length=400", backend=backend)
    for shot in {shot for shot, _ in found}:
        pieces = [found[shot, chunk] for chunk in range(-(-one.steps[shot] // one.length)) if (shot, chunk) in found]
        outputs = np.concatenate(pieces) if (shot, 0) in found else np.zeros(0)
        batch = whole.task._sequences("train", np.array([shot]), np.array([0]), train.steps[[shot]], 400)
        batch |= {"steps": train.steps[[shot]].astype(np.int32), "disrupted": train.disrupted[[shot]]}
        batch |= {"weight": np.ones(1, np.float32), "index": np.zeros(1, np.int64), "begins": np.ones(1, bool)}
        alone = next(iter(whole.evaluate([batch])))["output"][0]
        assert np.allclose(outputs, alone[: len(outputs)], atol=1e-12)
        checked += len(pieces) > 2
    assert checked > 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_and_empty_rows_change_nothing(backend: str) -> None:
    """Neither what lies behind a shot's end nor a row of weight 0 enters the loss or the outputs before the end."""
    one = made(backend=backend)
    batch = one.task.batch("valid", 0, 0)
    spoilt = {name: value.copy() for name, value in batch.items()}
    for row, steps in enumerate(batch["steps"]):
        spoilt["signals"][row, steps:] = 7.0
        spoilt["profiles"][row, steps:] = 7.0
        spoilt["target"][row, steps:] = -7.0
    first, second = (next(iter(one.evaluate([each]))) for each in (batch, spoilt))
    assert np.array_equal(first["loss"], second["loss"])
    for row, steps in enumerate(batch["steps"]):
        assert np.array_equal(first["output"][row, :steps], second["output"][row, :steps])


def test_the_published_network_has_its_size() -> None:
    from suite.tasks.frnn.torch import Network

    assert count_parameters(PUBLISHED.shapes()) == 600_873
    options: dict[str, Any] = {"target": "hinge", "activation": "relu", "rate": 0.1, "l2": 0.0, "length": 128}
    check_torch(lambda: Network(PUBLISHED, **options), PUBLISHED.shapes())


def test_the_linear_map_of_neighbours_is_a_convolution() -> None:
    """Against torch's own Conv1d and LSTM, with the same weights."""
    import torch

    one = made(backend="torch").model.eval()
    x = torch.randn(3, 5, 16, 2, dtype=torch.float64)
    with torch.no_grad():
        y = x.flatten(0, 1).transpose(1, 2)
        for place in (0, 2):
            weight = one.conv[place].weight.unflatten(1, (3, -1)).transpose(1, 2)
            y = torch.relu(torch.conv1d(y, weight, one.conv[place].bias))
            y = torch.relu(torch.conv1d(y, one.conv[place + 1].weight[..., None], one.conv[place + 1].bias))
            y = torch.max_pool1d(y, 2)
        y = torch.relu(one.dense[1](torch.relu(one.dense[0](y.transpose(1, 2).flatten(1)))))
        assert torch.allclose(one._profiles(x)[0], y.unflatten(0, (3, 5)), atol=1e-12)
        inputs, state = torch.randn(3, 5, 16, dtype=torch.float64), torch.randn(2, 1, 3, 6, dtype=torch.float64)
        theirs = torch.nn.LSTM(16, 6, batch_first=True, dtype=torch.float64)
        ours = one.lstm[0]
        values = {"weight_ih_l0": ours.input.weight, "weight_hh_l0": ours.recurrent.weight}
        values |= {"bias_ih_l0": ours.input.bias, "bias_hh_l0": torch.zeros_like(ours.input.bias)}
        theirs.load_state_dict(values)
        expected = theirs(inputs, (state[0], state[1]))[0]
        for mask in (None, torch.ones(3, 6, dtype=torch.float64)):  # by torch's kernel, and by the loop that hooks see
            assert torch.allclose(ours(inputs, state[0, 0], state[1, 0], mask)[0], expected)


def test_forget_gates_start_open() -> None:
    bias = task().init(0, "lstm.0.input.bias")
    assert np.array_equal(bias, np.repeat([0, 1, 0, 0], 6)) and bias.dtype == np.float32


# --------------------------------------------------------------------------------------------------- trees
def test_the_trees_features_do_not_look_ahead() -> None:
    values = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    changed = values.copy()
    changed[40:] += 5
    before, after = (trees.compute_features(each, dt=0.005) for each in (values, changed))
    assert before.shape == (60, 21)
    assert np.array_equal(before[:40], after[:40]) and not np.allclose(before[40:], after[40:])
    assert np.allclose(before[30, 3:6], values[21:31].mean(0), atol=1e-5)  # the last 50 ms, now included
    assert np.allclose(before[30, 6:9], values[21:31].std(0), atol=1e-5)
    assert np.allclose(before[30, 9:12], values[30] - values[21], atol=1e-5)


@pytest.mark.slow
def test_trees_are_scored_as_the_network_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "SAMPLES", 2000)
    one = task("variant=0d", "sources.simulated.counts={single: 160, cross: 20, glimpse: 24}")
    scores = trees.score(one, trees.fit(one, 0))
    assert scores["auc"] > 0.7 and set(scores) | {"loss"} == set(
        made("variant=0d", backend="torch").task.score(
            [
                {
                    "output": np.zeros((2, 40)),
                    "loss": np.ones(2),
                    "steps": np.array([40, 40]),
                    "disrupted": np.array([True, False]),
                    "weight": np.ones(2),
                }
            ]
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_default_optimizer_reaches_the_laptop_target(backend: str) -> None:
    settings = configure.resolve(["task=frnn", f"backend={backend}"])
    from suite.training.loop import train

    one = make_task(settings)
    last = list(train(one, engine(settings, one), settings))[-1]
    assert last.outcome["kind"] == "reached"
