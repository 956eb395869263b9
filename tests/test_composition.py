"""Outcomes of Hydra that are kept on disk: equal to fresh ones, and made anew when anything they depend on changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.settings import composition
from suite.settings.composition import compose_overrides, find_kept

pytestmark = pytest.mark.quick
WORDS = ["task=resnet50", "optimizer=sgd", "++seed=3"]
MINE = "name: mine\nmodule: mylab.signs\nlr: 0.5\n"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "suite" / "configurations"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return a list that records what Hydra composes."""
    words: list[list[str]] = []
    compose: Callable[..., dict[str, Any]] = composition._compose

    def count(overrides: list[str], directory: Path | None) -> dict[str, Any]:
        words.append(overrides)
        return compose(overrides, directory)

    monkeypatch.setattr(composition, "_compose", count)
    return words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's own folder with an optimizer."""
    path = tmp_path / "conf"
    (path / "optimizer").mkdir(parents=True)
    (path / "optimizer" / "mine.yaml").write_text(MINE)
    return path


def test_an_outcome_is_composed_once(made: list[list[str]], cache: Path) -> None:
    first = compose_overrides(WORDS)
    assert compose_overrides(WORDS) == first and made == [WORDS] and len(list(cache.iterdir())) == 1
    assert compose_overrides([*WORDS[:2], "++seed=4"])["seed"] == 4 and len(made) == 2


def test_a_changed_file_is_read(made: list[list[str]], folder: Path) -> None:
    words = ["task=resnet50", "optimizer=mine"]
    assert compose_overrides(words, folder)["optimizer"]["lr"] == 0.5
    (folder / "optimizer" / "mine.yaml").write_text(MINE.replace("0.5", "0.7"))
    assert compose_overrides(words, folder)["optimizer"]["lr"] == 0.7
    (folder / "recipe").mkdir()
    (folder / "recipe" / "resnet50-mine-laptop.yaml").write_text("# @package _global_\noptimizer:\n  lr: 0.9\n")
    assert compose_overrides(words, folder)["optimizer"]["lr"] == 0.9 and len(made) == 3


def test_variables_of_the_environment_count(monkeypatch: pytest.MonkeyPatch, made: list[list[str]]) -> None:
    words = ["task=resnet50", "launch=torchrun"]
    found = []
    for rank in (None, "0", "1", "0"):
        monkeypatch.delenv("RANK", raising=False) if rank is None else monkeypatch.setenv("RANK", rank)
        found.append(compose_overrides(words)["launch"]["rank"])
    assert found == [None, "0", "1", "0"] and len(made) == 3


@pytest.mark.parametrize(
    "text",
    [
        "${now:%Y}",
        "${oc.env:${task.name}}",
        "${oc.decode:${oc.env:HOME}}",
        "${oc.env:X_${task.name}}",
        "${ oc.env:X}",
        "${oc.env :X}",
        "${oc.env:X-1}",
        "${oc.${optimizer.name}:X}",
        "${${optimizer.name}:X}",
    ],
)
def test_what_may_change_is_not_kept(folder: Path, text: str) -> None:
    words = ["task=resnet50", "optimizer=mine"]
    assert find_kept(words, folder) is not None
    assert find_kept([*words, f"++data_dir='{text}'"], folder) is None
    (folder / "optimizer" / "mine.yaml").write_text(f"{MINE}when: {text}\n")
    assert find_kept(words, folder) is None


def test_an_escape_that_may_hide_an_interpolation_is_not_kept(folder: Path) -> None:
    (folder / "optimizer" / "mine.yaml").write_text(f'{MINE}when: "\\x24{{oc.env:HOME}}"\n')
    assert find_kept(["task=resnet50"], folder) is None


def test_references_that_follow_from_the_files_are_kept(folder: Path) -> None:
    text = "a: ${task.name}\nb: ${.x.${.y}}\nc: ${oc.select:${task}.d,${oc.env:HOME,none}}\n"
    (folder / "optimizer" / "mine.yaml").write_text(MINE + text)
    assert find_kept(["task=resnet50"], folder) is not None


def test_a_file_that_changes_meanwhile_is_not_kept(monkeypatch: pytest.MonkeyPatch, folder: Path, cache: Path) -> None:
    words, path, compose = ["task=resnet50", "optimizer=mine"], folder / "optimizer" / "mine.yaml", composition._compose

    def edit_and_compose(overrides: list[str], directory: Path | None) -> dict[str, Any]:
        path.write_text(MINE.replace("0.5", "0.9"))
        return compose(overrides, directory)

    with monkeypatch.context() as patch:
        patch.setattr(composition, "_compose", edit_and_compose)
        assert compose_overrides(words, folder)["optimizer"]["lr"] == 0.9
    path.write_text(MINE)
    assert not cache.exists() and compose_overrides(words, folder)["optimizer"]["lr"] == 0.5


def test_other_search_paths_are_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_kept([f"hydra.searchpath=[file://{tmp_path}]"], None) is None
    (tmp_path / "hydra_plugins").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_kept(["task=resnet50"], None) is None


def test_a_large_folder_is_not_walked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "MOST_ENTRIES", 200)
    for number in range(201):
        (folder / f"{number}.txt").touch()
    assert find_kept(["task=resnet50"], folder) is None


@pytest.mark.parametrize(
    "damage", [lambda text: text[:100], lambda text: text.replace("0.1", "0.2", 1), lambda text: "{}", lambda text: ""]
)
def test_a_damaged_file_is_composed_again(made: list[list[str]], cache: Path, damage: Callable[[str], str]) -> None:
    first = compose_overrides(WORDS)
    [path] = cache.iterdir()
    assert damage(path.read_text()) != path.read_text()
    path.write_text(damage(path.read_text()))
    assert compose_overrides(WORDS) == first and compose_overrides(WORDS) == first and len(made) == 2


def test_a_cache_that_cannot_be_used_is_left_out(
    monkeypatch: pytest.MonkeyPatch, made: list[list[str]], cache: Path
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("")
    assert compose_overrides(WORDS) == compose_overrides(WORDS) and len(made) == 2

    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", refuse)
    assert compose_overrides(WORDS) and len(made) == 3


@pytest.mark.parametrize("text, value", [("!!binary aGVsbG8=", b"hello"), ("{1: one}", {1: "one"})])
def test_values_that_json_lacks_are_not_kept(folder: Path, cache: Path, text: str, value: Any) -> None:
    (folder / "optimizer" / "mine.yaml").write_text(f"{MINE}key: {text}\n")
    for _ in range(2):
        assert compose_overrides(["task=resnet50", "optimizer=mine"], folder)["optimizer"]["key"] == value
    assert not cache.exists()


def test_the_older_half_goes(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(composition, "MOST_KEPT", 4)
    for seed in range(6):
        compose_overrides([*WORDS[:2], f"++seed={seed}"])
    assert len(list(cache.iterdir())) == 4
