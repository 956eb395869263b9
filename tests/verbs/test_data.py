"""`suite data`."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_runs import CONF, Call
from written import write_jpeg

from suite import load
from suite.contract import UserError
from suite.settings import configure
from suite.settings.overrides import quote_text
from suite.tasks import resnet50
from suite.tasks._data.public import FASHION_MNIST
from suite.tasks._data.shapes import NAMES


def test_data_says_what_is_here(suite: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(resnet50.PUBLIC, "fashion", replace(FASHION_MNIST, package_folder=str(tmp_path)))
    code, text = suite("data", "resnet50")
    digits, shapes, fashion, folder, choose = text.splitlines()
    assert code == 0
    assert digits.startswith("digits") and "real, embedded" in digits and "1,437 train, 360 valid" in digits
    assert shapes.startswith("shapes") and "generated" in shapes
    assert fashion.startswith("fashion  not here: no files of Fashion-MNIST; use `suite data resnet50 --fetch`, `apt")
    assert folder.startswith("folder") and "--from DIR" in folder
    assert choose == "to choose: suite +task=resnet50 task.data=digits|shapes|fashion|folder"


def test_data_without_a_task_says_which_there_are(suite: Call, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("--check",)):
        with pytest.raises(SystemExit) as ended:
            suite("data", *arguments)
        said = capfd.readouterr().err
        assert ended.value.code == 2 and said.startswith("usage: suite data TASK [--from DIR]")
        assert f"TASK is missing; choose one of {', '.join(load.find_members('tasks'))}" in said


def test_data_adopts_a_directory_and_finds_damaged_files(suite: Call, tmp_path: Path) -> None:
    images = tmp_path / "some images"
    write_jpeg(images, train=48, valid=16)
    code, text = suite("data", "resnet50", "--from", str(images), "--check")
    assert code == 0, text
    assert "real, some images, 48 train, 16 valid" in text and "read 64 images; 0 damaged files" in text
    assert f"train  16 classes, 3 ({NAMES[0]}) to 3" in text and f"1 {NAMES[7]}" in text
    assert text.splitlines()[-1] == f"next: suite +task=resnet50 task.data=folder data_dir='{images}'"
    assert suite("data", "resnet50", f"data_dir='{images}'", "--check")[1].splitlines()[-1] == text.splitlines()[-1]
    broken = next((images / "train" / NAMES[3]).iterdir())
    broken.write_bytes(broken.read_bytes()[:500])
    assert suite("data", "resnet50", "--from", str(images))[0] == 0, "files are read with --check only"
    code, text = suite("data", "resnet50", "--from", str(images), "--check")
    assert code == 1 and f"cannot read train/{NAMES[3]}/{broken.name}" in text and "1 damaged files" in text
    assert "task.on_error=skip" in text.splitlines()[-1]


@pytest.mark.parametrize(
    "name", ["é ü 日本", "a\\b", 'q"\\"', "${oc.env:HOME}", "a=b,c", "{a}[b]", "end\\", "'", "#x (y)"]
)
def test_a_directory_may_have_any_name(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    run = configure.resolve(["task=resnet50", "task.data=folder", f"data_dir={quote_text(str(folder))}"])
    assert run.data_dir == str(folder)


def test_data_adopts_a_directory_that_is_not_ascii(suite: Call, tmp_path: Path) -> None:
    write_jpeg(tmp_path / "bilder é\\n", train=16, valid=16)
    code, text = suite("data", "resnet50", "--from", str(tmp_path / "bilder é\\n"))
    assert code == 0 and "16 train, 16 valid" in text, text


def test_data_says_what_to_type(suite: Call) -> None:
    assert suite("data", "resnet50", "--from", "/nowhere")[0] == 2
    code, text = suite("data", "resnet50", "--check", "task.data=folder")
    assert code == 2 and "use --from DIR" in text
    code, text = suite("data", *CONF, "tiny", "--check")
    assert code == 2 and "none of its data is read from a directory" in text
    assert suite("data", *CONF, "tiny")[1].startswith("tiny  generated")
    assert "did you mean resnet50" in suite("data", "resnet5")[1]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", load.find_members("tasks"))
def test_a_task_that_reads_a_directory_can_count_check_and_do_without(name: str, tmp_path: Path) -> None:
    sources = configure.compose_nodes([f"task={name}", f"data_dir={tmp_path}"])["task"].get("sources", {})
    for source, node in sources.items():
        if "data_dir" in node["options"]:
            module = load.load_member(configure.resolve([f"task={name}"]).task.module)
            assert isinstance(module.PARTS, str), "`suite data` prints it"
            node = configure.resolve([f"task={name}", f"task.data={source}"]).task
            assert module.make(**node.options(), absent=True).shapes()
            for function in (module.check, module.census):
                with pytest.raises(UserError):
                    function(str(tmp_path))
