"""Picture of a plan: golden, well-formed, escaped, in proportion, and inside its boxes in a browser.

`PYTHONPATH=. .venv/bin/python tests/partition/test_picture.py` writes the golden file again.
"""

import dataclasses
import re
from pathlib import Path
from xml.etree import ElementTree

import browser
import conftest
import pytest

from suite.comm.partition import picture
from suite.comm.partition.picture import draw_plan
from suite.comm.partition.plan import Plan, Stage
from suite.comm.partition.timeline import simulate_step

GOLDEN = conftest.TESTS / "golden" / "partition" / "plan.svg"
SVG = "{http://www.w3.org/2000/svg}"
STAGE = Stage(
    nodes=(0,),
    first="model.<embed> & norm",
    last="model.encoder.11.attention.output",
    replicas=1,
    recompute=False,
    parameters=400 * 2**20,
    memory=6 * 2**30,
    forward=0.1,
    backward=0.2,
    receives=(),
    received=0,
    returned=0,
)


def planned(stages: int = 3, **changes: object) -> Plan:
    """A plan of equal stages; the first recomputes, and the last averages gradients."""
    made = [dataclasses.replace(STAGE, received=3 * 2**20 * bool(number), receive=0.01) for number in range(stages)]
    made[0] = dataclasses.replace(made[0], recompute=True, backward=0.3, memory=9 * 2**30)
    made[-1] = dataclasses.replace(made[-1], all_reduce=0.15, first="head", last="head")
    whole = Plan(tuple(made), 1, 4, 2, "1f1b", 0.0, (), 0.0, limit=9 * 2**30)
    times = simulate_step(whole.times, whole.schedule, whole.micro_batches)
    whole = dataclasses.replace(whole, seconds=times.seconds, busy=times.busy, bubble=times.bubble)
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


def widths(plan: Plan, kind: str) -> list[float]:
    """Return the widths of all bars of a kind."""
    paths = ElementTree.fromstring(draw_plan(plan)).findall(f"{SVG}path[@class='{kind}']")
    return [float(width) for path in paths for width in re.findall(r"h([\d.]+)v", path.attrib["d"])]


def test_a_fixed_plan_gives_the_golden_file() -> None:
    assert draw_plan(planned()) == GOLDEN.read_text()
    assert draw_plan(planned()) == draw_plan(planned())


@pytest.mark.parametrize("stages", [1, 2, 4, 5, 17])
def test_the_file_is_well_formed_and_its_text_escaped(stages: int) -> None:
    root = ElementTree.fromstring(draw_plan(planned(stages)))
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert sum("model.<embed> & norm" in text for text in texts) == max(stages - 1, 0) or stages == 1
    assert sum(text.startswith("memory ") for text in texts) == stages
    assert texts.count("3 MiB") == stages - 1
    assert len(root.findall(f"{SVG}path[@class='arrow']")) == stages - 1
    assert len(root.findall(f"{SVG}path[@class='track']")) == stages


def test_what_is_empty_is_the_bubble() -> None:
    """Bars without averaging fill a share of the tracks that is one minus the bubble."""
    plan = planned()
    busy = sum(sum(widths(plan, kind)) for kind in ("forward", "again", "backward"))
    assert busy / sum(widths(plan, "track")) == pytest.approx(1 - plan.bubble, rel=1e-3)


def test_bars_are_in_proportion_to_their_times() -> None:
    plan = planned()
    scale = widths(plan, "track")[0] / plan.seconds
    assert widths(plan, "forward") == pytest.approx([0.1 * scale] * 12, abs=0.1)
    assert widths(plan, "backward") == pytest.approx([0.2 * scale] * 12, abs=0.1)
    assert widths(plan, "again") == pytest.approx([0.1 * scale] * 4, abs=0.1)
    assert widths(plan, "average") == pytest.approx([0.15 * scale], abs=0.1)


def test_activations_are_computed_again_before_the_backward_pass() -> None:
    root = ElementTree.fromstring(draw_plan(planned()))
    again, backward = (root.find(f"{SVG}path[@class='{kind}']") for kind in ("again", "backward"))
    assert again is not None and backward is not None
    ends = [float(x) + float(width) for x, width in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)", again.attrib["d"])]
    starts = [float(x) for x in re.findall(r"M([\d.]+)", backward.attrib["d"])]
    assert ends == pytest.approx(starts, abs=0.15)


def test_memory_is_drawn_as_a_share_of_the_limit() -> None:
    root = ElementTree.fromstring(draw_plan(planned()))
    rooms, used = (root.findall(f"{SVG}rect[@class='{kind}']") for kind in ("room", "used"))
    shares = [
        float(part.attrib["width"]) / float(whole.attrib["width"]) for part, whole in zip(used, rooms, strict=True)
    ]
    assert shares == pytest.approx([1, 2 / 3, 2 / 3], abs=1e-2)
    assert "9 GiB" in draw_plan(planned()) and "9 GiB" not in draw_plan(planned(2, limit=0)).replace("memory 9 GiB", "")


def test_labels_are_shortened_at_their_start() -> None:
    assert picture.shorten_text("model.encoder.11", 8) == "…oder.11"
    assert picture.shorten_text("model", 8) == "model"


def test_ticks_are_round_and_few() -> None:
    assert picture.list_ticks(1000.0) == [0, 200, 400, 600, 800, 1000]
    assert picture.list_ticks(0.0) == [0.0]
    for high in (1e-4, 0.37, 9.99, 123.0, 8e5):
        assert 3 <= len(picture.list_ticks(high)) <= 9 and picture.list_ticks(high)[-1] <= high * (1 + 1e-9)


@pytest.mark.skipif(browser.executable() is None, reason="needs Chromium: apt-get install chromium")
@pytest.mark.xdist_group("browser")
def test_in_a_browser_every_text_is_inside_its_box_in_light_and_dark(tmp_path: Path) -> None:
    file, page = tmp_path / "plan.svg", browser.Browser()
    try:
        file.write_text(draw_plan(planned(9)))
        colours = []
        for scheme in ("light", "dark"):
            page.open(file, width=960, scheme=scheme)
            colours.append(page.run("getComputedStyle(document.querySelector('.page')).fill"))
            outside = page.run(
                """(() => {
                const boxes = [...document.querySelectorAll('.page, .stage')].map(box => box.getBBox());
                const within = (a, b) => a.x >= b.x && a.y >= b.y && a.x + a.width <= b.x + b.width
                  && a.y + a.height <= b.y + b.height;
                const meets = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width
                  && a.y < b.y + b.height && b.y < a.y + a.height;
                return [...document.querySelectorAll('text')].filter(text =>
                  boxes.some(box => meets(text.getBBox(), box) && !within(text.getBBox(), box)))
                  .map(text => text.textContent);
                })()"""
            )
            assert outside == []
        assert len(set(colours)) == 2 and page.complaints == []
    finally:
        page.close()


if __name__ == "__main__":
    GOLDEN.write_text(draw_plan(planned()))
