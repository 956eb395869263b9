"""Photographs sent as bytes: an engine that normalises them gets the images that the host normalises, bit for bit."""

from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
import small

from suite.contract import Finished, SendsBytes
from suite.launch import job
from suite.settings.run import Run
from suite.tasks._images import Classification
from suite.training import loop

FORMS = {
    "resnet50": ["data=folder", "width=4", "bn_group=4", "batch_size=16", "image_size=32", "mixup=0.4"],
    "caffenet": ["data=folder", "width=6", "hidden=8", "image_size=64", "batch_size=8", "eval_batch_size=16"],
}


def describe(name: str, written: Path, backend: str, *options: str, **changes: Any) -> Run:
    return small.small(
        name, [*FORMS[name], *options], f"data_dir={written}", f"backend={backend}", device="cpu", **changes
    )


def make_task(run: Run) -> Classification:
    task = job.make_task(run)
    assert isinstance(task, Classification) and isinstance(task, SendsBytes)
    return task


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("name", FORMS)
def test_bytes_become_the_images(written: Path, name: str, split: str) -> None:
    task = make_task(describe(name, written, "torch"))
    packed, batch = task.byte_batch(split, 3, 1, 1, 2), task.batch(split, 3, 1, 1, 2)
    assert packed["image"].dtype == np.uint8 and task.moments
    mean, deviation = task.moments
    np.testing.assert_array_equal((packed.pop("image") - mean) / deviation, batch.pop("image"))
    assert engines.same(packed, batch) and packed.keys() == batch.keys()


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("backend", engines.BACKENDS)
def test_an_engine_makes_the_same_steps_of_both(written: Path, backend: str, precision: str) -> None:
    run = describe("resnet50", written, backend, precision=precision)
    task = make_task(run)
    reached = []
    for make in (task.batch, task.byte_batch):
        engine = engines.engine(run, task)
        batches = [make("train", 0, step) for step in range(3)]
        engine.warm(batches[0], range(3), {})
        losses = engine.losses([engine.step(step, batch, {}) for step, batch in enumerate(batches)])
        outputs = next(iter(engine.evaluate([make("valid", 0, 0)])))
        reached.append((losses, outputs["logits"], engines.weights(engine)))
    (losses, logits, weights), (found_losses, found_logits, found) = reached
    assert found_losses == losses and engines.same(found, weights)
    np.testing.assert_array_equal(found_logits, logits)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("erase", [0.0, 0.5])
def test_the_loop_sends_bytes_to_an_engine_that_takes_them_unless_images_are_erased(
    written: Path, erase: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = describe("resnet50", written, "torch", f"erase={erase}", max_steps=2, eval_every=2)
    task, kinds = make_task(run), list[Any]()
    engine = engines.engine(run, task)
    engine.takes_bytes = True
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda *given: kinds.append(given[1]["image"].dtype) or step(*given))
    assert isinstance(list(loop.train(task, engine, run))[-1], Finished)
    assert kinds == [np.float32 if erase else np.uint8] * 2
