"""Every command in README, run; every file it names, there."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import conftest
import pytest

from suite import load

ROOT = conftest.TESTS.parent
pytestmark = pytest.mark.xdist_group("docs")  # later commands find the runs of earlier ones
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^\$ (.+)$", README, re.MULTILINE)
SUITE = [command for command in COMMANDS if command.startswith("suite ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all commands, so that the later ones find the runs of the earlier ones."""
    return tmp_path_factory.mktemp("reader")


# a sweep, and runs to the target, which tests/test_steps.py makes too
LONG = [
    command
    for command in SUITE
    if " -m " in command or re.fullmatch(r"suite task=\S+ optimizer=\S+( backend=\S+)?", command)
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "command", [pytest.param(command, marks=pytest.mark.slow if command in LONG else []) for command in SUITE]
)
def test_command(command: str, folder: Path) -> None:
    variables = {name: value for name, value in conftest.inherit().items() if name != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=folder, env=variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def test_make_targets_exist() -> None:
    targets = [command.split()[1] for command in COMMANDS if command.startswith("make ")]
    assert targets == ["run", "test"]
    for target in [*targets, "setup", "bench", "test-all", "docs"]:
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_extras_exist() -> None:
    extras = re.findall(r"pip install -e '\.\[(\w+)\]'", README)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras == ["torch", "jax"] and set(extras) <= set(declared)


def test_the_rooms_of_the_architecture_page_are_the_rooms() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().split("## Packages")[1].split("\n## ")[0]
    named = set(re.findall(r"`suite/(\w+)/`", page))
    there = {path.parent.name for path in (ROOT / "suite").glob("*/*.py") if not path.parent.is_symlink()}
    assert named == there


def test_the_page_of_optimizers_names_each_with_what_it_needs() -> None:
    page = (ROOT / "docs" / "optimizers.md").read_text().partition("## Torch")[0]
    stated = {
        name: needs.partition(":")[0]
        for names, needs in re.findall(r"^\| (`.+`) \| (.+) \|$", page, re.MULTILINE)
        for name in re.findall(r"\w+", names)
    }
    expected = {}
    for name in load.find_members("optimizers").keys() - {"external"}:
        needs = load.load_member(f"suite.optimizers.{name}").NEEDS
        seen = "`layers`, and the layers' inputs and output gradients"
        expected[name] = seen if "observe" in needs else "`layers`" if "layers" in needs else "nothing"
    assert stated == expected


def test_readme_is_short_and_its_figure_shows_what_it_says() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import figures
    finally:
        sys.path.pop(0)
    assert len(README.splitlines()) <= 120
    shares = figures.shares()
    assert f"{shares['measured']:.2f} here and {shares['published']:.2f} in a published table" in README
    words = [
        ", ".join("more than 640" if step == float("inf") else str(step) for step in steps[:2])
        for steps in map(figures.steps_to_last_target, map(figures.runs, ("kfac", "sgd")))
    ]
    assert all(word in " ".join(README.split()) for word in words), words


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
        for name in re.findall(
            r"`((?:suite|tests|tasks|optimizers|comm|conf|results)/[\w/.\-]+\.(?:py|yaml|json|md))`", page.read_text()
        ):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_constraints_pin_every_dependency() -> None:
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [name for extra in project["optional-dependencies"].values() for name in extra]
    assert {re.split(r"[<>=]", name)[0].lower() for name in wanted} <= pinned


def test_constraints_for_cuda_fit_the_others() -> None:
    """They add packages, and name the same jax."""
    pins = [
        dict(line.split("==") for line in (ROOT / name).read_text().splitlines() if not line.startswith("#"))
        for name in ("constraints.txt", "constraints-cuda.txt")
    ]
    assert not pins[0].keys() & pins[1].keys()
    assert {pins[1]["jax-cuda13-plugin"], pins[1]["jax-cuda13-pjrt"]} == {pins[0]["jax"]}


def test_citation_file_is_valid() -> None:
    import yaml

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "title", "message", "authors"} <= citation.keys()
