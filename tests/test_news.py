"""Who added results, and when, as the repository says."""

import pytest
from repositories import git

from suite.board.news import list_additions

pytestmark = pytest.mark.quick


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "--quiet")
    return tmp_path


def commit(folder, who, date, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    git(folder, "add", "--all")
    day = f"--date={date}T12:00:00"
    git(folder, "commit", "--quiet", "--allow-empty", "--message=x", f"--author={who} <a@example.org>", day)


def test_each_commit_names_its_contributor_and_the_results_that_are_still_there(repository):
    commit(repository, "Ann", "2026-01-02", "runs/bert/a.json", "runs/bert/gone.json", "runs/dlrm/é.json", "code.py")
    commit(repository, "Bob \x1f B", "2026-01-03", "runs/dlrm/b.json", "runs/notes.json", "runs/dlrm/deep/c.json")
    (repository / "runs/bert/gone.json").unlink()
    (repository / "runs/bert/a.json").write_text("changed")
    commit(repository, "Cid", "2026-01-04")
    (repository / "runs/bert/mine.json").write_text("not committed")
    additions = list_additions([repository / "runs"])
    assert [(one.date, one.contributor, one.tasks) for one in additions] == [
        ("2026-01-03", "Bob \x1f B", {"dlrm": 1}),
        ("2026-01-02", "Ann", {"bert": 1, "dlrm": 1}),
    ]
    assert len(additions[0].commit) == 40


def test_a_result_that_came_back_counts_once(repository):
    commit(repository, "Ann", "2026-01-02", "bert/a.json")
    (repository / "bert/a.json").unlink()
    commit(repository, "Ann", "2026-01-03")
    commit(repository, "Bob", "2026-01-04", "bert/a.json")
    assert [one.contributor for one in list_additions([repository])] == ["Bob"]


def test_without_a_whole_history_nothing_is_known(repository, tmp_path_factory):
    for day in (2, 3):
        commit(repository, "Ann", f"2026-01-0{day}", f"bert/{day}.json")
    outside = tmp_path_factory.mktemp("outside")
    (outside / "plain").mkdir()
    git(outside, "clone", "--quiet", "--depth=1", repository.as_uri(), "shallow")
    assert list_additions([outside / "plain", outside / "shallow"]) == []
    assert len(list_additions([repository, outside / "plain"])) == 2
