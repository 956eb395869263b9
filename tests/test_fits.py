"""Published times beside projected ones: one model, the published order, and nothing predicted that was fitted."""

import itertools
from dataclasses import replace
from typing import Any

import conftest
import pytest
from engines import change

from suite.launch import premises
from suite.projection import project
from suite.settings import configure
from suite.studies import fits
from suite.verbs import plan

PAGE = conftest.TESTS.parent / "docs" / "projection.md"


def planned(preset: str, network: dict[str, Any] | None = None, world: int = 128) -> float:
    """Seconds of a step, as `suite plan` says; with other keys of the network, or another number of devices."""
    seconds = {"compute_seconds": 0.057, "inverse_seconds": fits.extra().inverses}
    sizes = {"world": world, "task.batch_size": 32 * world}
    run = change(fits.composed(preset), {**seconds, **sizes, "network": network or {}})
    found = plan.describe_plan(run)["projected"]
    return found["step_seconds"][found["schedule"]]


def misplaced(seconds: dict[str, float]) -> set[tuple[str, str]]:
    """Pairs of presets that are not in the order of the published table, or as fast as each other."""
    published = {preset: float(fits.published.find_row(row).value) for preset, row in fits.ROWS.items()}
    return {
        (one, other)
        for one, other in itertools.combinations(fits.ROWS, 2)
        if (seconds[other] - seconds[one]) * (published[other] - published[one]) <= 0
    }


@pytest.mark.parametrize("world", [16, 128])
def test_the_plan_has_the_published_order(world: int) -> None:
    """Of every pair of the ablation's presets, where sending and computing at once costs what it cost the authors."""
    contended = configure.resolve(["+task=resnet50", "network=abci_contended"]).network
    assert misplaced({preset: planned(preset, contended, world) for preset in fits.ROWS}) == set()


def test_without_contention_overlap_gains_what_it_lost() -> None:
    """abci itself takes overlap for free; the published step became slower with it. All other pairs are in order."""
    free = misplaced({preset: planned(preset) for preset in fits.ROWS})
    assert {before for before, _ in free} == {"kfac_symmetric", "kfac_float21"}
    assert {after for _, after in free} == {"kfac_overlap", "kfac_hierarchical"}
    assert len(free) == 3


def test_misplaced_pairs_are_found() -> None:
    """Orders that the plan once had are found: 21 bits slower than 32, stale statistics as slow as fresh ones."""
    published = {preset: float(fits.published.find_row(row).value) for preset, row in fits.ROWS.items()}
    assert misplaced(published) == set()
    assert ("kfac_symmetric", "kfac_float21") in misplaced(published | {"kfac_float21": 213.0})
    assert ("kfac_hierarchical", "kfac_stale") in misplaced(published | {"kfac_stale": published["kfac_hierarchical"]})


def test_fits_and_plan_say_the_same() -> None:
    extra = fits.extra()
    for point, preset in zip(fits.ablation(), fits.ROWS, strict=True):
        assert planned(preset, {"contention": extra.contention}) == point.predicted, preset
    contended = configure.resolve(["+task=resnet50", "network=abci_contended"]).network.contention
    assert contended == round(extra.contention, 2), "conf/network/abci_contended.yaml"


@pytest.mark.parametrize("world", [2, 64])
def test_figure_5s_exchange_is_the_plans_ring(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without statistics SP-NGD's two halves are a ring's mean of all parameters, which a plan can be asked for."""
    bare = [replace(block, triangles=0) for block in fits.blocks(False)]
    monkeypatch.setattr(fits, "blocks", lambda full: bare)
    words = ["+task=resnet50", "scale=paper", "recipe=untuned", "optimizer=sgd", "network=abci", f"world={world}"]
    words += ["comm.algorithm.module=suite.comm.algorithms.ring", "comm.piece_kib=0", "comm.bucket_mib=1000"]
    found = plan.describe_plan(configure.resolve([*words, f"task.batch_size={32 * world}", "task.bn_group=32"]))[
        "projected"
    ]
    assert fits.exchange(False, world) == pytest.approx(found["communication_seconds"], rel=1e-9)


def test_the_published_table_is_what_the_page_shows() -> None:
    assert fits.report() in PAGE.read_text(), "python -m suite.studies.fits prints the page's tables"


def test_the_page_shows_the_plan_as_it_is_printed() -> None:
    """Lines of `suite plan` for 21 bits, from the words that the page gives, stand on the page."""
    text = PAGE.read_text()
    words = next(
        line for line in text.splitlines() if line.startswith("    suite plan") and "comm=kfac_float21" in line
    ).split()[2:]
    run = configure.resolve_training(words)
    task = premises.describe_task(run)[0]
    for line in project.format_projection(project.project_step(project.place_ranks(run), task, None), ""):
        assert line in text


def points() -> list[fits.Point]:
    return [*fits.scaling(), *fits.stale(), *fits.ablation()]


def test_what_is_predicted_takes_no_part_in_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every predicted point ten times as large the predictions stay what they were."""
    before = [point.predicted for point in points()]
    held = {point.row for point in points() if not point.fitted}
    rows = {row.id: row for row in fits.published.load_rows()}
    for name in held:
        row = rows[name]
        details: dict[str, Any] = {k: 10 * v if k == "time_per_step_s" else v for k, v in row.details.items()}  # type: ignore[operator]
        value = row.value if row.table == "A1" else 10 * float(row.value)
        rows[name] = replace(row, value=value, details=details)
    monkeypatch.setattr(fits.published, "load_rows", lambda: tuple(rows.values()))
    monkeypatch.setattr(fits.published, "find_row", rows.__getitem__)
    assert len(held) == 28 + 3 + 4
    assert [point.predicted for point in points()] == pytest.approx(before)


def test_the_fitted_model_holds_beyond_its_points() -> None:
    far = [point for point in fits.scaling() if not point.fitted]
    assert max(point.devices or 0 for point in far) == 1024
    assert max(abs(point.error) for point in far) < 0.07
    assert max(abs(point.error) for point in fits.ablation()) < 0.05
