"""Recipes at gpu and paper scale: which one a run takes, what it says, and that docs/recipes.md agrees."""

import json
import re
from typing import Any

import conftest
import pytest
import yaml
from tiny_runs import Call

from suite import load
from suite.contract import UserError
from suite.nodes import load_settings
from suite.settings import configure, recipes
from suite.settings.rates import compute_factor

SCALES = ("gpu", "paper")
TASKS = sorted(load.find_members("tasks"))
PAGE = (conftest.TESTS.parent / "docs" / "recipes.md").read_text()
both = pytest.mark.parametrize("scale", SCALES)
every = pytest.mark.parametrize("task", TASKS)


@both
@pytest.mark.parametrize("task", [task for task in TASKS if recipes.list_published(task, "gpu")])
def test_every_task_composes_a_published_recipe(task: str, scale: str) -> None:
    config = configure.resolve([f"task={task}", f"scale={scale}"])
    assert config.tuning.source not in (recipes.UNTUNED, recipes.DEFAULTS) and not config.tuning.trials
    assert not recipes.warn_untuned(config)
    assert config.optimizer.name == next(iter(recipes.list_published(task, scale)))


def rows() -> list[list[str]]:
    """Return the cells of the page's table."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def row(task: str, scale: str, optimizer: str, recipe: str) -> list[str]:
    """Return the row that the table must have for one recipe."""
    config = configure.resolve([f"task={task}", f"scale={scale}", f"optimizer={optimizer}"])
    targets = ", ".join(f"{target:g}" for target in config.task.targets)
    batch, rate = config.task.batch_size, config.optimizer.lr
    source = config.tuning.source
    return [
        task,
        scale,
        optimizer,
        f"`{recipe}`",
        f"{batch:,}",
        f"{config.max_steps:,}",
        f"{rate:.3g}",
        targets,
        source,
    ]


def test_the_table_is_what_is_composed() -> None:
    expected = [
        row(task, scale, optimizer, recipe)
        for task in TASKS
        for scale in SCALES
        for optimizer, recipe in recipes.list_published(task, scale).items()
    ]
    assert rows() == expected


def test_an_optimizer_without_a_recipe_says_so_and_starts_carefully(suite: Call) -> None:
    config = configure.resolve(["task=bert", "scale=gpu", "optimizer=muon"])
    assert config.tuning.source == "untuned" and config.clip_norm == 1.0
    least = yaml.safe_load(next(p for p in load.find_files("optimizer") if p.stem == "muon").read_text())["search"][
        "lr"
    ][0]
    assert config.optimizer.lr == least and "search" not in config.optimizer.options()
    steps = [compute_factor(step, config.max_steps, config.schedule) for step in (0, 44_999, 899_999)]
    assert steps == pytest.approx([1 / 45_000, 1.0, 0.0], abs=1e-9), "a warm-up over 5 %, then down to 0"
    said = recipes.warn_untuned(config)
    assert "optimizer=muon has no published recipe for task=bert at scale=gpu" in said and said.endswith("adamw, lamb")
    assert f"warning: {said}" in suite("plan", "task=bert", "scale=gpu", "optimizer=muon")[1]
    changed = configure.resolve(["task=bert", "scale=gpu", "optimizer=muon", "optimizer.lr=0.01"])
    assert recipes.warn_untuned(changed) == said, "one typed value does not make the others tuned"
    assert not recipes.warn_untuned(configure.resolve(["task=bert", "optimizer=muon"])), (
        "the laptop's defaults are of no paper"
    )


def test_a_run_begins_with_the_caution(suite: Call) -> None:
    words = ["task=autoencoder", "scale=gpu", "optimizer=sgd", "device=cpu", "task.variant=curves", "track=none"]
    small = ["task.widths=[784,20,10,5]", "task.sources.curves.options={train: 200, valid: 50}", "task.batch_size=20"]
    code, text = suite(*words, *small, "max_steps=2", "threads=1")
    assert code == 0 and "note: optimizer=sgd has no published recipe for task=autoencoder at scale=gpu" in text


@pytest.mark.quick
def test_a_recipe_that_was_tuned_or_named_comes_first() -> None:
    assert configure.resolve(["task=frnn", "scale=gpu", "recipe=null"]).tuning.source == "defaults"
    named = configure.resolve(["task=bert", "scale=gpu", "recipe=bert-lamb-phase2"])
    assert (named.optimizer.name, named.max_steps) == ("lamb", 1563)
    assert configure.resolve(["task=frnn"]).tuning.source == "frnn-adamw-laptop"


@pytest.mark.quick
@pytest.mark.parametrize("variant, width", [("base", 512), ("big", 1024)])
def test_the_transformers_rate_is_the_papers(variant: str, width: int) -> None:
    """d_model^-0.5 · min(step^-0.5, step · 4000^-1.5), steps from 1 (Vaswani et al. 2017, section 5.3, equation 3)."""
    scale = "gpu" if variant == "base" else "paper"
    config = configure.resolve(["task=transformer", f"scale={scale}"])
    assert config.task.variant == variant and config.task.width == width
    for step in (1, 1000, 3999, 4000, 4001, 16_000, 100_000):
        published = width**-0.5 * min(step**-0.5, step * 4000**-1.5)
        rate = config.optimizer.lr * compute_factor(step - 1, config.max_steps, config.schedule)
        assert rate == pytest.approx(published, rel=1e-12)
    assert {name: getattr(config.optimizer, name) for name in ("beta2", "epsilon", "weight_decay")} == {
        "beta2": 0.98,
        "epsilon": 1e-9,
        "weight_decay": 0.0,
    }


@pytest.mark.parametrize("recipe", ["goyal-256", "goyal-8k"])
def test_the_rate_grows_with_the_batch(recipe: str) -> None:
    """0.1 for each 256 images (Goyal et al. 2017, section 5.1)."""
    config = configure.resolve(["task=resnet50", "scale=paper", f"recipe={recipe}"])
    assert config.optimizer.lr == pytest.approx(0.1 * config.task.batch_size / 256)


@pytest.mark.quick
def test_caffenets_rate_is_the_posters() -> None:
    """0.01 (1 - epoch/100)², over 100 epochs; 1,000 outputs whatever the classes."""
    config = configure.resolve(["task=caffenet", "scale=gpu"])
    for epoch in (0, 8, 48, 96):
        step = round(config.max_steps * epoch / 100)
        rate = config.optimizer.lr * compute_factor(step, config.max_steps, config.schedule)
        assert rate == pytest.approx(0.01 * (1 - epoch / 100) ** 2, rel=1e-3)
    assert config.task.head == 1000


@pytest.mark.parametrize(
    "words, says",
    [
        (("task=bert", "task.variant=tiy"), r"task\.variant=tiy: task=bert .*did you mean tiny"),
        (("task=dlrm", "task.variant=v3"), r"did you mean v2 or v1"),
        (("task=transformer", "task.data=corpas"), r"task\.data=corpas: .*did you mean corpus"),
        (
            ("task=caffenet", "task.data=image"),
            r"task=caffenet has none of that name; there are fashion, folder, shapes",
        ),
        (("task=bert", "scale=gpuu"), r"scale=gpuu: unknown; did you mean gpu"),
    ],
)
def test_an_unknown_alternative_is_answered_with_the_nearest(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UserError, match=says):
        configure.resolve(list(words))


def own_settings(task: str) -> list[str]:
    """Return the settings that a task declares itself."""
    settings = load_settings(f"suite.tasks.{task}")
    return list(settings.__annotations__) if settings else []


@pytest.mark.parametrize(
    "task, key", [(task, key) for task in TASKS for key in ("variant", "data") if key in own_settings(task)]
)
def test_no_unknown_alternative_is_an_interpolation_error(task: str, key: str) -> None:
    from suite.launch.job import make_task

    with pytest.raises(UserError, match=rf"task\.{key}=nothing") as error:
        make_task(configure.resolve([f"task={task}", f"task.{key}=nothing"]))
    assert "nterpolation" not in str(error.value)


def test_a_scale_that_the_task_lacks(tmp_path: Any) -> None:
    (tmp_path / "scale").mkdir()
    (tmp_path / "scale" / "cluster.yaml").write_text("# @package _global_\nscale: cluster\n")
    with pytest.raises(UserError, match=r"scale=cluster: task=frnn has none .*there are gpu, laptop, paper"):
        configure.resolve(["task=frnn", "scale=cluster"], tmp_path)


@every
@both
def test_the_plan_of_a_default_sees_an_epoch(task: str, scale: str, suite: Call) -> None:
    found = json.loads(suite("plan", f"task={task}", f"scale={scale}", "--json")[1])
    assert (found["epochs"] is None) == (task == "frnn"), "the lengths of DIII-D's shots are unknown without them"
    assert (found["epochs"] or 1) >= 1 and not any("of an epoch" in line for line in found["warnings"])


def test_the_plan_warns_where_a_recipes_epochs_are_others(suite: Call) -> None:
    """CaffeNet's poster trains 100 epochs of 16 classes; on all of ImageNet its steps are 1.6 epochs."""
    words = ["plan", "task=caffenet", "scale=gpu", "task.published_classes=1000"]
    text = suite(*words)[1]
    assert "8,125 steps are 1.62 epochs of this data, but the recipe trains 100 epochs; set max_steps=500456" in text
    assert "the recipe trains" not in suite(*words, "max_steps=500456")[1]


def test_the_plan_warns_of_less_than_an_epoch(suite: Call) -> None:
    text = suite("plan", "task=resnet50", "scale=gpu", "max_steps=5004")[1]
    assert re.search(
        r"warning: 5,004 steps of 256 images are 0.9999 of an epoch; for a whole epoch, set max_steps=5005", text
    )
    assert "for a whole epoch" not in suite("plan", "task=resnet50", "scale=gpu", "max_steps=5005")[1]
