"""The verbs that run nothing, or run again: list, plan, data, verify, tune."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conftest
import pytest
import yaml

from suite import cli, configure, environment, load, record, run
from suite.contract import UserError
from suite.tasks._data.shapes import NAMES, write_jpeg
from suite.verbs import list as listing
from suite.verbs import recipe, rerun
from suite.verbs.plan import missing
from suite.verbs.trials import Trial, propose

CONF = ("--config-dir", str(conftest.OUTSIDE / "conf"))
TINY = (*CONF, "+task=tiny", "track=none", "threads=1")
PATH = os.pathsep.join([str(conftest.OUTSIDE), os.environ.get("PYTHONPATH", "")])
Call = Callable[..., tuple[int, str]]


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    """`suite` in this process and a folder of its own: exit code, and what it and its children printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", PATH)
    monkeypatch.delenv("XLA_FLAGS", raising=False)

    def call(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = cli.main(arguments)
        out, err = capfd.readouterr()
        return code, out + err

    return call


def finished(folder: Path, *arguments: str) -> Path:
    """The directory of a run in a process of its own."""
    variables = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "suite", *TINY, *arguments, f"run_dir={folder}"]
    environment = variables | {"PYTHONPATH": PATH}
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("one") / "run", "max_steps=12", "eval_every=4")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, and a codec from outside the tree that is not closed under addition."""
    return finished(tmp_path_factory.mktemp("two") / "run", "max_steps=6", "eval_every=4", "world=2", "comm=truncate16")


# -------------------------------------------------------------------------------------------------------- list
def test_list_is_light() -> None:
    code = (
        "import sys\nfrom suite.cli import main\nassert main(['list', '--cite']) == 0\n"
        "heavy = {'torch', 'jax', 'hydra', 'mlflow', 'sklearn', 'PIL'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_list_holds_every_member_and_preset(suite: Call) -> None:
    code, text = suite("list", "--json")
    found = json.loads(text)
    assert code == 0 and list(found) == [*listing.GROUPS, "here"]
    for group in load.GROUPS:
        assert {name: entry["backends"] for name, entry in found[group].items()} == {
            name: load.backends(folder) for name, folder in load.members(group).items()
        }
    for group, folder in listing.FILES.items():
        assert list(found[group]) == load.options(folder)
    for group in listing.GROUPS:
        for name, entry in found[group].items():
            assert set(entry) == {"backends", "summary", "citation"}, name
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

    monkeypatch.setattr(load, "framework", refuse)
    here = json.loads(suite("list", "--json")[1])["here"]
    assert here["jax"] is None and here["torch"]
    assert suite("list")[1].splitlines()[-1].endswith("jax not installed")


# -------------------------------------------------------------------------------------------------------- plan
def planned(suite: Call, *arguments: str) -> dict[str, Any]:
    code, text = suite("plan", *arguments, "--json")
    found = json.loads(text)
    assert code == (1 if found["missing"] else 0)
    return found


def test_plan_of_real_scale_without_its_data(suite: Call) -> None:
    found = planned(suite, "+task=resnet50", "scale=gpu")
    assert found["parameters"] == 25_557_032
    assert found["layers"] == {"conv2d": 53, "batchnorm": 53, "linear": 1}
    assert found["covered_parameters"] == found["parameters"]
    assert found["samples"] == found["steps"] * 256 and found["config"]["task"]["data"] == "folder"
    assert found["epochs"] == pytest.approx(found["samples"] / 1_281_167)
    assert any("type data_dir=DIRECTORY" in line for line in found["missing"])
    assert "absent" not in found["config"]["task"]


def test_plan_of_a_published_row(suite: Call) -> None:
    found = planned(suite, "experiment=A1-12")
    assert found["published"]["id"] == "A1-12" and found["published"]["value"] == 75.4
    assert found["batch_per_device"] == 32 and found["batch_size"] == 32_768
    each = 2 * 1023 * 4 * 25_557_032 // 1024  # a ring all-reduce of float32 gradients
    assert found["gradient_bytes_per_step"] == {"each": each, "all": 1024 * each}
    code, text = suite("plan", "experiment=A1-12")
    assert code == 1 and "published   A1-12: SP-NGD, ResNet-50, ImageNet-1k · 75.4 top-1 accuracy %" in text
    assert "1,760 steps · 45 epochs · 1,024 × Tesla V100 · 5.5 min" in text and "Natural Gradient" in text
    assert "papers used" not in text, "the row itself says it"
    assert "missing: data: this data set is a directory of image files" in text
    assert "missing: 1,024" in text
    assert all(line.startswith("missing: ") for line in text.splitlines()[-2:])


def test_plan_at_paper_scale_says_how_many_devices_papers_used(suite: Call) -> None:
    text = suite("plan", "+task=resnet50", "scale=paper", "task.batch_size=32768")[1]
    (line,) = [line for line in text.splitlines() if line.startswith("papers used")]
    assert "1,024 (A1-03, A1-06, A1-12 and " in line and line.endswith(
        "devices for batch 32,768; planned 1, world=N plans another number"
    )
    other = suite("plan", "+task=resnet50", "scale=paper", "task.batch_size=96")[1]
    assert re.search(r"papers used \d+ to [\d,]+ devices, for other batches than 96; planned 1", other)
    assert "papers used an unknown number" in suite("plan", "+task=frnn", "scale=paper")[1]
    assert "papers used" not in suite("plan", "+task=resnet50")[1], "a stand-in is not what the papers ran"
    assert "published  " not in suite("plan", "+task=resnet50", "scale=paper")[1]


def test_plan_ends_with_0_where_nothing_is_missing(suite: Call) -> None:
    code, text = suite("plan", "+task=resnet50", "device=cpu")
    assert code == 0 and "missing" not in text


def test_plan_refuses_what_no_data_would_mend(suite: Call) -> None:
    code, text = suite("plan", "+task=resnet50", "scale=paper", "world=1024")
    assert code == 2 and "task.batch_size=4096: not divisible" in text
    code, text = suite("plan", *CONF, "+task=tiny", "task.batch_size=15", "world=2")
    assert code == 2 and "task.batch_size=15: not divisible" in text


def test_plan_reads_the_classes_of_the_data_that_is_here(suite: Call, tmp_path: Path) -> None:
    write_jpeg(tmp_path / "images", train=16, valid=16)
    found = planned(suite, "+task=resnet50", "scale=gpu", f"data_dir={tmp_path / 'images'}", "device=cpu")
    assert found["parameters"] == 25_557_032 - (1000 - len(NAMES)) * 2049
    assert found["missing"] == [] and found["epochs"] == found["samples"] / 16


def test_plan_names_missing_devices_and_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"backend": "jax", "world": 2, "device": "auto"}
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr("suite.verbs.plan.gpus", lambda: 0)
    assert missing(config) == []
    assert missing(config | {"device": "cuda"}) == ["2 GPUs; here: none"]
    assert missing(config | {"world": 1000 * cores})[0].startswith(f"{1000 * cores:,} devices; here: {cores} CPU core")
    monkeypatch.setattr("suite.verbs.plan.gpus", lambda: 1)
    assert missing(config) == ["2 GPUs; here: 1"]
    monkeypatch.setattr(load.importlib.util, "find_spec", lambda name: None)
    assert "pip install -e '.[jax]'" in missing(config | {"world": 1})[0]


def test_plan_counts_visible_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from suite.verbs.plan import gpus

    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho 'GPU 1: A (UUID: y)'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus() == 1
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpus() == 0


def test_planned_bytes_are_those_of_the_ledger(suite: Call, two: Path) -> None:
    result = json.loads((two / "result.json").read_text())
    found = planned(suite, *TINY, "world=2", "comm=truncate16")
    assert found["gradient_bytes_per_step"]["each"] * result["steps"] == result["bytes"]["by_name"]["gradients"] > 0


def test_plan_takes_the_step_time_of_the_most_similar_run(suite: Call, one: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "runs" / "tiny" / "near").symlink_to(one)
    far = {"spec__config__max_steps": 99, "spec__config__accumulate": 2, "step_seconds__p50": 9.0}
    copied(one, tmp_path / "runs" / "tiny" / "far", **far)
    assert planned(suite, *TINY, "optimizer=kfac")["measured"] is None
    result = json.loads((one / "result.json").read_text())
    near = planned(suite, *TINY, "max_steps=12", "eval_every=8")["measured"]
    assert near == {
        "result": "runs/tiny/near/result.json",
        "step_seconds": result["step_seconds"]["p50"],
        "differs": ["eval_every"],
    }
    assert "as in runs/tiny/near/result.json; other values there: eval_every, max_steps" in suite("plan", *TINY)[1]


def test_plan_loads_no_framework() -> None:
    code = (
        "import sys\nfrom suite.cli import main\nassert main(['plan', 'experiment=A1-12', '--json']) == 1\n"
        "heavy = {'torch', 'jax', 'mlflow'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# -------------------------------------------------------------------------------------------------------- data
def test_data_says_what_is_here(suite: Call) -> None:
    code, text = suite("data", "resnet50")
    digits, shapes, folder, choose = text.splitlines()
    assert code == 0
    assert digits.startswith("digits") and "real, embedded" in digits and "1,437 train, 360 valid" in digits
    assert shapes.startswith("shapes") and "generated" in shapes
    assert folder.startswith("folder") and "--from DIR" in folder
    assert choose == "to choose: suite +task=resnet50 task.data=digits|shapes|folder"


def test_data_without_a_task_says_which_there_are(suite: Call, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("--check",)):
        with pytest.raises(SystemExit) as ended:
            suite("data", *arguments)
        said = capfd.readouterr().err
        assert ended.value.code == 2 and said.startswith("usage: suite data TASK [--from DIR]")
        assert f"which TASK? there are {', '.join(load.members('tasks'))}" in said


def test_data_adopts_a_directory_and_finds_damaged_files(suite: Call, tmp_path: Path) -> None:
    images = tmp_path / "some images"
    write_jpeg(images, train=48, valid=16)
    code, text = suite("data", "resnet50", "--from", str(images), "--check")
    assert code == 0, text
    assert "real, some images, 48 train, 16 valid" in text and "read 64 images; 0 damaged files" in text
    assert f"train  16 classes, 3 ({NAMES[0]}) to 3" in text and f"1 {NAMES[7]}" in text
    assert text.splitlines()[-1] == f"next: suite +task=resnet50 task.data=folder data_dir='{images}'"
    broken = next((images / "train" / NAMES[3]).iterdir())
    broken.write_bytes(broken.read_bytes()[:500])
    assert suite("data", "resnet50", "--from", str(images))[0] == 0, "files are read with --check only"
    code, text = suite("data", "resnet50", "--from", str(images), "--check")
    assert code == 1 and f"cannot read train/{NAMES[3]}/{broken.name}" in text and "1 damaged files" in text
    assert "task.on_error=skip" in text.splitlines()[-1]


def test_data_says_what_to_type(suite: Call) -> None:
    assert suite("data", "resnet50", "--from", "/nowhere")[0] == 2
    code, text = suite("data", "resnet50", "--check")
    assert code == 2 and "type --from DIR" in text
    code, text = suite("data", *CONF, "tiny", "--check")
    assert code == 2 and "none of its data is read from a directory" in text
    assert suite("data", *CONF, "tiny")[1].startswith("tiny      generated")
    assert "did you mean resnet50" in suite("data", "resnet5")[1]


@pytest.mark.parametrize("name", load.members("tasks"))
def test_a_task_that_reads_a_directory_can_count_check_and_do_without(name: str, tmp_path: Path) -> None:
    sources = configure.whole([f"task={name}", f"data_dir={tmp_path}"])["task"].get("sources", {})
    for source, node in sources.items():
        if "data_dir" in node["options"]:
            module = load.common(configure.compose([f"task={name}"])["task"]["module"])
            node = configure.compose([f"task={name}", f"task.data={source}"])["task"]
            assert module.make(**load.arguments(node), absent=True).shapes()
            for function in (module.check, module.census):
                with pytest.raises(UserError):
                    function(str(tmp_path))


# ------------------------------------------------------------------------------------------------------ verify
def copied(run: Path, folder: Path, *, log: bool = True, **changes: Any) -> Path:
    """A run's result, with changed values at dotted keys, and its log."""
    result = json.loads((run / "result.json").read_text())
    for key, value in changes.items():
        *path, last = key.split("__")
        node: Any = result
        for part in path:
            node = node[int(part) if isinstance(node, list) else part]
        node[int(last) if isinstance(node, list) else last] = value
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result))
    if log:
        (folder / "events.jsonl").write_text((run / "events.jsonl").read_text())
    return folder / "result.json"


def test_verify_agrees_bit_for_bit(suite: Call, one: Path) -> None:
    code, text = suite("verify", str(one / "result.json"), "--trust", "--steps", "8")
    assert code == 0, text
    assert "to step 8: losses (8) and evaluations (2) agree bit for bit" in text


def test_verify_runs_the_same_number_of_ranks(suite: Call, two: Path) -> None:
    code, text = suite("verify", str(two / "result.json"), "--trust", "--steps", "4")
    assert code == 0 and "losses (4) and evaluations (1) agree" in text, text


def test_verify_imports_nothing_foreign_without_trust(suite: Call, one: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    sys.path.insert(0, str(tmp_path))
    try:
        for key in ("module", "torch"):
            path = copied(one, tmp_path / key, **{f"spec__config__optimizer__{key}": "evil"}, log=False)
            code, text = suite("verify", str(path))
            assert code == 2 and "evil" in text and "--trust" in text
            assert suite("verify", str(path), "--steps", "0")[0] == 1  # the hash differs
    finally:
        sys.path.remove(str(tmp_path))
    assert "evil" not in sys.modules


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"hash": "0" * 12}, "hash: '000000000000' is recorded"),
        ({"spec__seed": 5}, "spec.seed: 5 is recorded, 0 comes out"),
        ({"spec__config__optimizer__lr": 0.5}, "hash"),
        ({"curve__1__metrics__top1": 99.0}, "curve.1.metrics.top1: 99.0 is recorded"),
        ({"targets__0__value": 1}, "targets.0.reached"),
        ({"targets__1__step": 1}, "targets.1.step: 1 is recorded"),
        ({"step_seconds__p50": 1e-6}, "step_seconds.p50"),
        ({"outcome__kind": "reached"}, "outcome.kind: 'reached' is recorded, 'exhausted' comes out"),
        ({"data__label": "real:tiny@1"}, "data.label"),
        ({"published": ["A1-12"]}, "published: A1-12: no such rows of tiny"),
        ({"samples": 1}, "samples: 1 is recorded, 12 steps of 16 samples are 192"),
        ({"fingerprint": "0" * 16}, "fingerprint: '0000000000000000' is recorded"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_verify_finds_a_changed_number(
    suite: Call, one: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    code, text = suite("verify", str(copied(one, tmp_path / "a", **changes)), "--steps", "0")
    assert code == 1 and says in text, text


def test_verify_recomputes_from_the_result_alone(suite: Call, one: Path, tmp_path: Path) -> None:
    path = copied(one, tmp_path / "whole", log=False)
    code, text = suite("verify", str(path), "--trust", "--steps", "1")
    assert code == 0 and "to step 4: losses (0) and evaluations (1) agree bit for bit" in text, text
    for changes, says in (
        ({"curve__2__samples": 1}, "curve.2.samples: 1 is recorded"),
        ({"targets__1__reached": True}, "targets.1.reached: True is recorded"),
        ({"curve__0__step": 9}, "curve: step does not rise"),
        ({"steps": 13, "samples": 208}, "steps: 13 is recorded, 12 comes out"),
        ({"curve__0__train_seconds": 1e6}, "curve: train_seconds does not rise"),
        ({"steps": 8, "samples": 128}, "curve: goes on to step 12, the run to 8"),
        ({"steps": 8, "samples": 128}, "outcome: exhausted after 8 of 12 steps"),
        ({"outcome__kind": "reached"}, "outcome: reached, with top1_60, top1_80 missed"),
    ):
        path = copied(one, tmp_path / "changed", log=False, **changes)
        code, text = suite("verify", str(path), "--steps", "0")
        assert code == 1 and says in text, text


def test_verify_allows_rounding_elsewhere_but_no_other_run(
    suite: Call, one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run on another machine gives: here, the recorded events with one loss changed."""
    recorded = [json.loads(line) for line in (one / "events.jsonl").read_text().splitlines()]
    result = json.loads((one / "result.json").read_text())
    there = result["environment"] | {"cpu": "another"}
    known = environment.fingerprint(there, device=result["spec"]["config"]["device"], threads=there["threads"])
    far = copied(one, tmp_path / "far", fingerprint=known, environment__cpu="another")
    near = copied(one, tmp_path / "near")

    def verified(path: Path, step: int, factor: float) -> tuple[int, str]:
        made = [dict(event) for event in recorded]
        changed = next(event for event in made if event["event"] == "step" and event["step"] == step)
        changed["loss"] *= factor
        monkeypatch.setattr(rerun, "first_steps", lambda config, steps: made)
        return suite("verify", str(path), "--trust")

    code, text = verified(far, 1, 1 + 1e-6)
    assert code == 0 and "losses (10)" in text and "cpu are not the same" in text, text
    code, text = verified(far, 1, 1.001)
    assert code == 1 and "loss of step 1" in text
    assert verified(far, 4, 1.001)[0] == 0 and verified(far, 10, 1.3)[0] == 1
    code, text = verified(near, 4, 1 + 1e-6)
    assert code == 1 and "bits must be equal" in text
    assert verified(near, 4, 1)[0] == 0
    recorded = recorded[:3]  # a rerun that ends early
    code, text = verified(far, 1, 1)
    assert code == 1 and "step 3 is recorded, and was not reached here" in text


def test_verify_says_where_a_log_is_damaged(suite: Call, one: Path, tmp_path: Path) -> None:
    path = copied(one, tmp_path / "cut")
    log = path.parent / "events.jsonl"
    log.write_text(log.read_text()[:2000] + "\n")
    code, text = suite("verify", str(path), "--steps", "0")
    assert code == 2 and "events.jsonl: damaged" in text
    log.write_text("")
    code, text = suite("verify", str(path), "--steps", "0")
    assert code == 1 and "holds no whole run" in text


def test_verify_compares_with_the_task_that_is_here(suite: Call, one: Path, tmp_path: Path) -> None:
    path = copied(one, tmp_path / "data", data__identity="2", data__label="generated:tiny@2")
    code, text = suite("verify", str(path), "--trust", "--steps", "1")
    assert code == 1 and "data.identity: '2' is recorded, '1' comes out" in text
    path = copied(one, tmp_path / "version", task_version="0")
    code, text = suite("verify", str(path), "--trust")
    assert code == 2 and "version 0 of the task" in text


def test_verify_holds_to_the_schema(suite: Call, one: Path, tmp_path: Path) -> None:
    code, text = suite("verify", str(copied(one, tmp_path / "more", speed=9)))
    assert code == 1 and "'speed' was unexpected" in text
    code, text = suite("verify", str(copied(one, tmp_path / "kind", outcome__kind="fast")))
    assert code == 1 and "outcome.kind: 'fast' is not one of" in text
    assert suite("verify", str(copied(one, tmp_path / "later", schema=2)))[0] == 2
    (tmp_path / "none.json").write_text("{")
    assert suite("verify", str(tmp_path / "none.json"))[0] == 2


def test_first_steps_are_a_long_run_stopped_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)
    directory = conftest.OUTSIDE / "conf"
    config = configure.compose(["task=tiny", "max_steps=20000", "eval_every=5000", "threads=1"], directory)
    since = time.monotonic()
    events = rerun.first_steps(config, 3)
    steps = [event for event in events if event["event"] == "step"]
    assert 3 <= len(steps) < 19000 and time.monotonic() - since < 60
    assert steps[2]["hyper"]["lr"] == pytest.approx(0.05 * 3 / 10)  # warm-up
    assert events[-1]["outcome"]["kind"] == "interrupted"


# -------------------------------------------------------------------------------------------------------- tune
SGD = {"name": "sgd", "lr": 0.05, "block_size": 128, "search": {"lr": [0.01, 1.0, "log"]}}


def test_the_list_is_frozen() -> None:
    points = propose(SGD, fixed=[], trials=8)
    expected = [0.1, 0.032, 0.32, 0.018, 0.18, 0.056, 0.56, 0.013]
    assert [point["optimizer.lr"] for point in points] == expected
    assert propose(SGD, fixed=[], trials=3) == points[:3]
    plane = SGD | {"search": SGD["search"] | {"block_size": [0, 100, "linear"]}}
    sizes = [point["optimizer.block_size"] for point in propose(plane, fixed=[], trials=4)]
    assert sizes == [33, 67, 11, 44] and all(isinstance(size, int) for size in sizes)
    assert list(propose(plane, fixed=["optimizer.lr"], trials=1)[0]) == ["optimizer.block_size"]


@pytest.mark.parametrize(
    "search", [{}, {"lr": [1.0, 0.1, "log"]}, {"lr": [0, 1, "log"]}, {"lr": [0.1, 1]}, {"damping": [0.1, 1.0, "log"]}]
)
def test_ranges_that_are_not_understood_are_refused(search: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="search"):
        propose(SGD | {"search": search}, fixed=[], trials=2)


def trial(number: int, *steps: int | None) -> Trial:
    targets = [{"reached": step is not None, "step": step, "label": f"top1_{i}"} for i, step in enumerate(steps)]
    return Trial(number, {"optimizer.lr": 0.1}, {"targets": targets, "outcome": {"kind": "exhausted"}})


def test_more_targets_win_then_fewer_steps_then_the_earlier_trial() -> None:
    trials = [
        Trial(1, {"optimizer.lr": 1.0}, None),
        trial(2, None, None),
        trial(3, 10, None),
        trial(4, 90, 300),
        trial(5, 80, 200),
        trial(6, 70, 200),
    ]
    assert [one.number for one in sorted(trials, key=lambda one: one.place)] == [5, 6, 4, 3, 1, 2]
    assert trials[0].outcome == "failed"


def test_tune_writes_a_recipe_that_runs_find(suite: Call, tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    (conf / "task").mkdir(parents=True)
    (conf / "task" / "tiny.yaml").write_text((conftest.OUTSIDE / "conf" / "task" / "tiny.yaml").read_text())
    words = ["--config-dir", str(conf), "+task=tiny", "max_steps=30", "schedule.warmup=2", "threads=1", "trials=2"]
    words += ["optimizer.search.lr=[0.05,0.2,log]"]
    code, text = suite("tune", *words)
    assert code == 0, text
    path = conf / "recipe" / "tiny-sgd-laptop.yaml"
    assert text.splitlines()[-1] == f"written: {path}"
    found = yaml.safe_load(path.read_text())["tuned"]["all"]
    assert [line["optimizer.lr"] for line in found["tried"]] == [0.1, 0.071] and found["trials"] == 2
    best = min(found["tried"], key=lambda line: line["steps"])
    assert found["values"] == {
        "optimizer": {"lr": best["optimizer.lr"]},
        "schedule": {"warmup": 2},
        "max_steps": 30,
    }
    assert found["command"].startswith("suite tune +task=tiny max_steps=30") and found["commit"] and found["machine"]

    config = configure.compose(["task=tiny"], conf)
    assert (config["optimizer"]["lr"], config["max_steps"]) == (best["optimizer.lr"], 30)
    assert config["schedule"] == {"shape": "linear", "warmup": 2}
    assert config["tuning"] == {"source": "tiny-sgd-laptop", "trials": 2}
    assert not {"tuned", "search"} & {*config, *config["optimizer"]}
    other = configure.compose(["task=tiny", "optimizer.lr=0.3", "max_steps=7"], conf)
    assert (other["optimizer"]["lr"], other["max_steps"], other["schedule"]["warmup"]) == (0.3, 7, 2)
    assert other["tuning"]["source"] == "command line" and other["tuning"]["from"] == "tiny-sgd-laptop"

    before = sorted((tmp_path / "runs" / "tiny").iterdir())
    code, text = suite("tune", *words)
    assert code == 0 and text.count("this result exists") == 2, "finished trials are found again"
    assert sorted((tmp_path / "runs" / "tiny").iterdir()) == before


def test_tune_without_a_target_writes_nothing(suite: Call, tmp_path: Path) -> None:
    code, text = suite("tune", *TINY, "max_steps=1", "trials=1", "--out", "never.yaml")
    assert code == 1 and "no trial reached a target" in text and not (tmp_path / "never.yaml").exists()


@pytest.mark.parametrize(
    "words, says",
    [
        (["+task=resnet50", "recipe=goyal-8k"], "tuning starts from the defaults"),
        (["+task=resnet50", "+optimizer.power=2"], "a recipe replaces values"),
        (["+task=resnet50", "trials=none"], "trials=none"),
        (["+task=resnet50", "optimizer.lr=0.1"], "nothing to search"),
        (["+task=resnet50", "--out", "hand.yaml"], "was not written by suite tune"),
    ],
)
def test_tune_refuses(suite: Call, tmp_path: Path, words: list[str], says: str) -> None:
    (tmp_path / "hand.yaml").write_text("max_steps: 3\n")
    code, text = suite("tune", *words)
    assert code == 2 and says in text


def test_a_recipe_holds_each_source_of_data_and_falls_back(tmp_path: Path) -> None:
    """Tuning one source of data leaves another's values; a source that was never tuned gets the defaults."""
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "both.yaml").write_text("name: both\nmodule: x\nvariant: a\nbatch_size: 8\ndata: one\n")
    untouched = configure.whole(["task=both", "recipe=null"], tmp_path)
    evidence = {"source": "both-sgd-laptop", "trials": 8}
    tuned = {
        "one": {**evidence, "values": {"optimizer": {"lr": 0.5}}},
        "two": {**evidence, "trials": 4, "values": {"optimizer": {"lr": 0.2, "nesterov": True}, "max_steps": 9}},
    }
    path = tmp_path / "recipe" / "both-sgd-laptop.yaml"
    path.parent.mkdir()
    path.write_text(recipe.text(untouched, tuned))
    assert recipe.tuned_in(path) == tuned

    def values(*overrides: str) -> list[Any]:
        config = configure.compose(["task=both", *overrides], tmp_path)
        optimizer = config["optimizer"]
        return [optimizer["lr"], optimizer["nesterov"], config["max_steps"], config["tuning"]["trials"]]

    assert values() == [0.5, False, 200, 8]
    assert values("task.data=two") == [0.2, True, 9, 4]
    assert values("task.data=three") == values("recipe=null") == [0.05, False, 200, 0]
    assert configure.compose(["task=both", "task.data=three"], tmp_path)["tuning"]["source"] == "defaults"


TUNED = [
    path for path in sorted((conftest.TESTS.parent / "conf" / "recipe").glob("*.yaml")) if "tuned:" in path.read_text()
]


@pytest.mark.parametrize("path", TUNED, ids=lambda path: path.stem)
def test_recipes_of_the_suite_agree_with_their_evidence(path: Path) -> None:
    """Each source's values are its best trial's and reach a run; other sources get what stands in the YAML files."""
    task, optimizer, scale = path.stem.split("-")
    words = [f"task={task}", f"optimizer={optimizer}", f"scale={scale}"]
    for source, found in recipe.tuned_in(path).items():
        config = configure.compose([*words, f"task.data={source}"])
        values = configure.flat(found["values"])
        assert {key: recipe.at(config, key) for key in values} == values
        assert config["tuning"] == {"source": path.stem, "trials": found["trials"]} and found["trials"] == len(
            found["tried"]
        )
        reached = [line for line in found["tried"] if line["steps"]]
        rungs = [record.label(target) for target in run.make_task(config).targets]
        best = max(reached, key=lambda line: (rungs.index(line["reached"]), -line["steps"]))
        assert best["optimizer.lr"] == values["optimizer.lr"]
    others = set(configure.whole([f"task={task}"])["task"]["sources"]) - set(recipe.tuned_in(path))
    for other in (f"task.data={source}" for source in others):
        assert configure.compose([*words, other]) == configure.compose([*words, "recipe=null", other])
