"""`suite list`."""

import json
from pathlib import Path

import pytest
from light import loaded
from tiny_runs import Call

from suite import load
from suite.contract import UserError
from suite.verbs import list as listing


def test_a_group_may_be_named_as_in_a_run(suite: Call) -> None:
    assert suite("list", "optimizer", "--json") == suite("list", "optimizers", "--json")


def test_list_is_light() -> None:
    code, names = loaded("list", "--cite")
    assert code == 0 and not names & {"torch", "jax", "hydra", "mlflow", "sklearn", "PIL"}


def test_list_holds_every_member_and_preset(suite: Call) -> None:
    code, text = suite("list", "--json")
    found = json.loads(text)
    assert code == 0 and list(found) == [*listing.GROUPS, "here"]
    for group in load.GROUPS:
        written = {name: load.find_backends(folder) for name, folder in load.find_members(group).items()}
        if group == "optimizers":
            written["kfac_jax"] = ["jax"]  # inside of `external`
        assert {name: entry["backends"] for name, entry in found[group].items()} == written
    for group in ("tasks", "optimizers"):
        assert list(found[group]) == load.list_options(group.removesuffix("s"))  # what may be typed
    for group, folder in listing.FILES.items():
        assert list(found[group]) == load.list_options(folder)
    for group in listing.GROUPS:
        for name, entry in found[group].items():
            assert set(entry) == {"backends", "summary", "citation", "results"}, name
            assert entry["summary"] and "@package" not in entry["summary"], name
            assert bool(entry["backends"]) == (group != "baselines"), name
    assert found["tasks"]["resnet50"]["citation"].startswith("He, Zhang, Ren, Sun")
    assert found["scales"]["laptop"]["summary"] == "Embedded data, about a minute on two cores."


def test_list_one_group_with_citations(suite: Call) -> None:
    code, text = suite("list", "optimizers", "--cite")
    assert code == 0 and "arXiv:1503.05671" in text and "resnet50" not in text
    assert "arXiv:1503.05671" not in suite("list", "optimizers")[1]
    code, text = suite("list", "optimisers")
    assert code == 2 and "did you mean optimizers" in text


def test_list_says_what_runs_here(suite: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(backend: str) -> None:
        if backend == "jax":
            raise UserError("no jax")

    monkeypatch.setattr(load, "check_framework", refuse)
    here = json.loads(suite("list", "--json")[1])["here"]
    assert here["jax"] is None and here["torch"]
    assert suite("list")[1].splitlines()[-1].endswith("jax not installed")


def test_what_was_never_run_can_be_told_apart(suite: Call) -> None:
    """By the committed results, counted here in another way."""
    folder = Path(__file__).parents[2] / "results" / "runs"
    specs = [json.loads(path.read_text())["spec"] for path in folder.rglob("*.json")]
    found = json.loads(suite("list", "--json")[1])
    for group, word in (("comm", "comm"), ("tasks", "task"), ("optimizers", "optimizer")):
        for name, entry in found[group].items():
            assert bool(entry["results"]) == any(spec[word] == name for spec in specs), name
    recipes, experiments = found["recipes"], found["experiments"]
    kfac = len(list(folder.glob("autoencoder/mnist-kfac-*.json")))
    assert experiments["C9-19"]["results"] == recipes["goldfarb-kfac"]["results"] == kfac > 0
    assert experiments["A1-12"]["results"] == recipes["spngd-32k"]["results"] == 0
    assert recipes["resnet50-sgd-laptop"]["results"] and not recipes["untuned"]["results"]
    assert found["codecs"]["int8"]["results"] is None, "a part of presets"


def test_the_column_is_there_where_results_are(suite: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = suite("list", "experiments")[1].splitlines()
    assert lines[0].split() == ["experiments", "results"]
    columns = {line.split()[0]: line.split()[2] for line in lines[1:-1]}
    kfac = list((Path(__file__).parents[2] / "results" / "runs").glob("autoencoder/mnist-kfac-*.json"))
    assert columns["C9-19"] == str(len(kfac)) and columns["A1-12"] == "-"
    monkeypatch.setattr(listing.committed, "count_results", lambda: None)
    assert suite("list", "experiments")[1].splitlines()[0] == "experiments"
