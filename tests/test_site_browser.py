"""Leaderboard in a real browser: light and dark, narrow, by keyboard, on paper, and without a network."""

import itertools
import re

import browser
import pytest
from boards import MIXED, result, site, standing

pytestmark = [
    pytest.mark.skipif(browser.executable() is None, reason="needs Chromium: apt-get install chromium"),
    pytest.mark.xdist_group("browser"),  # one browser for all
]
PAGES = ("index.html", "claims.html", "task/resnet50.html")
LEAST_CONTRAST = 4.5  # of text; WCAG 2.2, success criterion 1.4.3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    long = result(optimizer="an-optimizer-with-a-very-long-name-that-nobody-would-choose", seed=7, step=140)
    jax = [{**some, "spec": {**some["spec"], "backend": "jax"}} for some in MIXED[:8]]
    site([*MIXED, *jax, long], folder, standings=[standing(), standing(id="other", verdict="contradicted")])
    return folder


@pytest.fixture(scope="module")
def shown():
    page = browser.Browser()
    yield page
    page.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_for_its_own_files_only_and_complains_of_nothing(shown, folder, name):
    shown.requests.clear()
    shown.complaints.clear()
    shown.open(folder / name)
    shown.run("new Promise(done => setTimeout(() => done(true), 300))")
    assert shown.complaints == []
    asked = {url for url in shown.requests if url != "data:,"}
    assert asked == {(folder / file).resolve().as_uri() for file in (name, "style.css", "site.js")}
    assert shown.run("getComputedStyle(document.body).maxWidth") != "none"  # the style sheet has been applied


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_a_page_is_never_wider_than_the_window(shown, folder, name, width):
    shown.open(folder / name, width=width)
    shown.run("document.querySelectorAll('details').forEach(element => element.open = true)")
    assert shown.run("document.documentElement.scrollWidth") <= width
    overflowing = "[...document.querySelectorAll('table')].filter(t => !t.closest('.scroll')).length"
    assert shown.run(overflowing) == 0


CONTRAST = """
(() => {
  const numbers = colour => {
    const canvas = document.createElement("canvas").getContext("2d");
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = colour => {
    const [r, g, b] = numbers(colour).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (numbers(colour)[3] === 255) return colour;
    }
    return "white";
  };
  const worst = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const ink = light(element instanceof SVGElement ? style.fill : style.color), paper = light(ground(element));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < %s) worst.push(`${element.outerHTML.slice(0, 80)}: ${ratio.toFixed(2)}`);
  }
  return worst;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_text_is_readable_in_light_and_dark(shown, folder, name, scheme):
    shown.open(folder / name, scheme=scheme)
    ground = shown.run("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", ground)[:3]))
    assert brightness > 700 if scheme == "light" else brightness < 120
    assert shown.run(CONTRAST % LEAST_CONTRAST) == []


def test_rows_are_filtered_by_keyboard_alone(shown, folder):
    shown.open(folder / "task/resnet50.html")
    visible = (
        "[...document.querySelectorAll('table.rows tbody tr')].filter(row => !row.hidden).map(r => r.dataset.optimizer)"
    )
    everything = shown.run(visible)
    assert len(set(everything)) > 2
    for _ in range(40):
        shown.press("Tab", code=9)
        if shown.run("document.activeElement.name") == "optimizer":
            break
    assert shown.run("document.activeElement.name") == "optimizer"
    assert shown.run("getComputedStyle(document.activeElement).outlineStyle") != "none"  # the focus is visible
    shown.press("s", code=83, text="s")  # selects the first choice with this letter
    chosen = shown.run("document.activeElement.value")
    assert chosen in ("sgd", "shampoo")
    assert set(shown.run(visible)) == {chosen}
    assert shown.run("document.querySelector('output').value").startswith(f"{everything.count(chosen)} of ")
    while shown.run("document.activeElement.type") != "reset":
        shown.press("Tab", code=9)
    shown.press("Enter", code=13, text="\r")
    shown.run("new Promise(done => setTimeout(() => done(true), 50))")
    assert shown.run(visible) == everything


def test_a_ladder_without_matching_rows_is_hidden(shown, folder):
    shown.open(folder / "task/resnet50.html")
    ladders = "[...document.querySelectorAll('section.ladder')].filter(section => !section.hidden).length"
    every = shown.run(ladders)
    shown.run("(() => { const s = document.querySelector('[name=tuned]'); s.value = 'not tuned';"
              "s.dispatchEvent(new Event('change', {bubbles: true})); })()")  # fmt: skip
    assert (every, shown.run(ladders)) == (4, 1)


def test_a_heading_sorts_its_table_by_keyboard(shown, folder):
    shown.open(folder / "task/resnet50.html")
    shown.run(
        "window.most = [...document.querySelectorAll('table.rows')].sort((a, b) => b.rows.length - a.rows.length)[0]"
    )
    shown.run("most.querySelectorAll('button.sort')[2].focus()")
    values = "[...most.tBodies[0].rows].map(row => row.cells[2].dataset.value)"
    for state in ("ascending", "descending"):
        shown.press("Enter", code=13, text="\r")
        assert shown.run("document.activeElement.parentElement.getAttribute('aria-sort')") == state
        numbers = [float(value) for value in shown.run(values)]
        assert len(set(numbers)) > 3 and numbers == sorted(numbers, reverse=state == "descending")
        assert float("inf") in numbers  # a row that misses the target


def test_the_first_tab_stop_skips_the_navigation(shown, folder):
    shown.open(folder / "index.html")
    shown.press("Tab", code=9)
    assert shown.run("document.activeElement.textContent") == "Skip to the content"
    shown.press("Enter", code=13, text="\r")
    assert shown.run("location.hash") == "#main"


@pytest.mark.parametrize("name", PAGES)
def test_headings_are_in_order(shown, folder, name):
    shown.open(folder / name)
    levels = shown.run("[...document.querySelectorAll('h1, h2, h3, h4')].map(heading => +heading.tagName[1])")
    assert levels[0] == 1 and all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_the_front_page_is_read_by_keyboard(shown, folder):
    """Each ladder and each claim is a link whose focus is visible."""
    shown.open(folder / "index.html")
    reached = []
    for _ in range(60):
        shown.press("Tab", code=9)
        reached.append(shown.run("document.activeElement.closest('.card, .short, .cell')?.className ?? ''"))
        assert shown.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
        if reached.count("cell bad") == 1:
            break
    links = "document.querySelectorAll('.card a').length"
    assert reached.count("card") == shown.run(links) == 1 and "cell bad" in reached


def test_paper_shows_tables_and_no_controls(shown, folder):
    shown.open(folder / "task/resnet50.html", media="print", scheme="light")
    assert shown.run("getComputedStyle(document.querySelector('.filters')).display") == "none"
    assert shown.run("getComputedStyle(document.querySelector('header nav')).display") == "none"
    assert shown.run("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"


def test_pages_are_complete_without_the_script(shown, folder):
    shown.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        shown.open(folder / "task/resnet50.html")
        assert shown.run("document.querySelector('.filters').hidden")
        assert shown.run("document.querySelectorAll('table.rows tbody tr').length") > 5
    finally:
        shown.call("Emulation.setScriptExecutionDisabled", value=False)
