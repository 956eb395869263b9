"""Where code outside the suite comes from, as a run records it and the board shows it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from boards import page, seeds

from suite.record.origins import describe_origins

TORCH = {"optimizer": {"module": "suite.optimizers.external", "torch": "torch.optim.RMSprop", "path": None}}


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=A. Author", "-c", "user.email=a@example.org", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_an_installed_package_states_version_source_and_author() -> None:
    (found,) = describe_origins(TORCH).items()
    name, origin = found
    assert name == "torch" and {"version", "source", "author"} <= origin.keys() and "commit" not in origin
    assert describe_origins({"optimizer": {"module": "suite.optimizers.sgd"}, "lr": "0.1"}) == {}


def test_a_folder_states_its_commit_author_and_address_without_a_password(tmp_path: Path) -> None:
    config = {"optimizer": {"module": "suite.optimizers.external", "path": str(tmp_path)}}
    assert describe_origins(config) == {str(tmp_path): {}}, "in no repository"
    (tmp_path / "code.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "code")
    git(tmp_path, "remote", "add", "origin", "https://user:secret@example.org/code.git")
    expected = {"commit": git(tmp_path, "rev-parse", "HEAD"), "source": "https://example.org/code.git", "dirty": False}
    assert describe_origins(config) == {str(tmp_path): expected | {"author": "A. Author"}}
    (tmp_path / "code.py").write_text("changed")
    assert describe_origins(config)[str(tmp_path)]["dirty"] is True


@pytest.mark.parametrize(
    ("origins", "says"),
    [
        (None, "code from outside the suite, whose source the result does not state"),
        ({"mylab": {}}, "mylab: in no repository; ask whoever ran it"),
        ({"mylab": {"version": "3.1", "author": "A <b>"}}, "mylab: version 3.1, by A &lt;b&gt;"),
        (
            {"mylab": {"commit": "0123456789abcdef", "dirty": True, "source": "https://example.org"}},
            "mylab: commit 0123456789ab, with uncommitted changes, which nobody else has, from https://example.org",
        ),
    ],
)
def test_the_row_of_an_optimizer_outside_the_tree_shows_what_its_command_needs(
    origins: dict[str, Any] | None, says: str, tmp_path: Path
) -> None:
    results = seeds("signs", 100, 101, 102)
    for one in results:
        one["spec"]["config"]["optimizer"]["module"] = "mylab.signs"
        one["environment"] |= {"origins": origins} if origins else {}
    content = page([*results, *seeds("kfac", 100, 101, 102)], tmp_path)
    assert content.count(f"<small>{says}</small>") == 1 and content.count(f"<small>needs {says}</small>") == 1
