"""A run is plain data: it survives every way in which it is stored, and old results are read as they were made."""

import json
import pickle
from pathlib import Path

import conftest
import engines
import pytest
import yaml

from suite import load
from suite.contract import UserError
from suite.record import record
from suite.settings.configure import resolve
from suite.settings.effects import hash_run, select_settings
from suite.settings.run import BaselineRun, Run, read_run

RESULTS = conftest.TESTS.parent / "results" / "runs"
COMMANDS = [
    *(f"task={name}" for name in load.find_members("tasks")),
    "task=resnet50 comm=adaprec world=2",
    "task=bert partition=auto world=2 partition.activations=fp8 optimizer=adamw network=1gbit",
    "experiment=A1-12 data_dir=/data",
    "task=resnet50 launch=slurm launch.nodes=2 world=2 optimizer=lars optimizer.lr=0.3",
    "task=frnn baseline=trees",
]


@pytest.mark.quick
def test_a_run_is_the_same_after_every_round_trip() -> None:
    for command in COMMANDS:
        run = resolve(command.split())
        assert read_run(json.loads(json.dumps(run.plain()))) == run, command
        assert read_run(yaml.safe_load(yaml.safe_dump(run.plain()))) == run, command
        assert pickle.loads(pickle.dumps(run)) == run, command
        with pytest.raises(ValueError, match="frozen"):
            run.seed = 3  # type: ignore[misc]


@pytest.mark.quick
def test_what_cfg_prints_composes_again_to_an_equal_run(suite, tmp_path: Path) -> None:
    code, printed = suite("task=resnet50", "optimizer=kfac", "optimizer.lr=0.2", "--cfg", "job")
    assert code == 0
    run = resolve(["task=resnet50", "optimizer=kfac", "optimizer.lr=0.2"])
    assert read_run(yaml.safe_load(printed)) == run
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "again.yaml").write_text(f"# @package _global_\n{printed}")
    assert resolve(["task=resnet50", "optimizer=kfac", "experiment=again"], tmp_path) == run


@pytest.mark.quick
def test_the_hash_covers_what_affects_anything_and_no_path() -> None:
    run = engines.config("sgd", "torch")
    for change in ({"prefetch": 4}, {"threads": 3}, {"eval_every": 3}, {"optimizer.lr": 0.3}, {"seed": 1}):
        assert hash_run(engines.change(run, change)) != hash_run(run), change
    for change in ({"data_dir": "/a"}, {"run_dir": "b"}, {"init_from": "c"}, {"save": "none"}, {"repeat": 2}):
        assert hash_run(engines.change(run, change)) == hash_run(run), change


@pytest.mark.quick
def test_a_setting_of_time_changes_no_measurement() -> None:
    run = engines.config("sgd", "torch")
    other = engines.change(run, {"prefetch": 4, "checkpoint_every": 7, "task.eval_batch_size": 8})
    measured = [select_settings(one, ("weights", "measurement")) for one in (run, other)]
    assert measured[0] == measured[1]
    assert select_settings(run, ("time",)) != select_settings(other, ("time",))


def test_every_committed_result_is_read() -> None:
    faults = []
    for path in sorted(RESULTS.rglob("*.json")):
        result = record.read_result(path)
        try:
            run = record.load_run(result)
        except UserError as error:
            faults.append(f"{path}: {error}")
            continue
        assert isinstance(run, BaselineRun) == record.is_baseline(result.spec)
        assert run.method == record.method_of(result.spec), path
        assert run.seed == result.spec.seed and run.task.name == result.spec.task, path
        if isinstance(run, Run):
            spec = result.spec
            assert (run.backend, run.world, run.comm.name) == (spec.backend, spec.world, spec.comm), path
    assert not faults


@pytest.mark.quick
def test_an_older_result_gets_what_its_run_had() -> None:
    run = engines.config("sgd", "torch").plain()
    for name in ("piece_kib", "bucket_mib", "topology", "schedule"):
        del run["comm"][name]
    run["launch"] = {"module": "suite.launch", "processes": "auto", "deadline": 600}
    old = read_run(run, old=True)
    assert isinstance(old, Run)
    assert old.launch.module == "suite.launch.local"
    assert (old.comm.bucket_mib, old.comm.piece_kib) == (25, 512), "float32 is not encoded, so pieces change nothing"
    run["comm"]["codec"] = {"module": "suite.comm.codecs.float21"}
    encoded = read_run(run, old=True)
    assert isinstance(encoded, Run) and encoded.comm.piece_kib == 0, "encoded in one piece"
    with pytest.raises(UserError, match=r"comm\.topology: missing"):
        read_run(run)


@pytest.mark.quick
def test_a_result_of_a_member_that_is_not_here_is_read() -> None:
    run = engines.config("sgd", "torch").plain()
    run["optimizer"] = {"name": "away", "module": "gone.away", "rate": 0.3}
    assert read_run(run, old=True).plain()["optimizer"] == run["optimizer"]
    with pytest.raises(UserError, match=r"gone\.away: no module gone"):
        read_run(run)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "batch_size", "targets", "placement"),
    [
        ([], 16, (30,), "replicated"),
        (["scale=gpu", "task.variant=split"], 32, (60, 80), "rows"),
        (["task.data=hard", "task.batch_size=8"], 8, (60, 80), "replicated"),
    ],
)
def test_the_alternatives_of_a_yaml_file_are_no_options_of_its_member(
    words: list[str], batch_size: int, targets: tuple[int, ...], placement: str
) -> None:
    run = resolve(["task=tinier", *words], conftest.OUTSIDE / "conf")
    options = run.task.options()
    assert (options["batch_size"], options["targets"], options["placement"]) == (batch_size, targets, placement)
    assert run.method == "secant", "the task's default"
    assert not {"scales", "variants", "sources", "default_optimizer", "search"} & {*options, *run.plain()["optimizer"]}


@pytest.mark.quick
def test_a_hint_names_no_alternatives() -> None:
    with pytest.raises(
        UserError, match=r"task\.scale: unknown; there are batch_size, data, eval_batch_size, placement"
    ):
        resolve(["task=tinier", "task.scale=gpu"], conftest.OUTSIDE / "conf")


@pytest.mark.quick
def test_a_member_without_settings_takes_the_keys_of_its_yaml_file(tmp_path: Path) -> None:
    outside = conftest.OUTSIDE / "conf"
    assert resolve(["task=tiny", "optimizer=secant", "optimizer.lr=0.3"], outside).method == "secant"
    for word, says in (("optimizer.rate=0.3", "unknown"), ("optimizer.lr=fast", "must be of type float")):
        with pytest.raises(UserError, match=says):
            resolve(["task=tiny", "optimizer=secant", word], outside)
