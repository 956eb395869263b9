"""Bad input gets one clear line and exit code 2."""

import json
import subprocess
from pathlib import Path
from typing import Any

import conftest
import pytest

import suite
from suite import cli
from suite.contract import UserError
from suite.load import list_options
from suite.record import environment
from suite.settings import configure
from suite.settings.overrides import expand_sweep
from suite.verbs import plan

TASK = "+task=resnet50"


@pytest.mark.parametrize(
    "overrides, says",
    [
        (["+task=resnet5"], "task=resnet5: unknown; did you mean resnet50"),
        ([TASK, "optimizer=kfak"], "optimizer=kfak: unknown; did you mean kfac or kfac_jax?"),
        ([TASK, "backend=tensorflow"], "backend=tensorflow: unknown; there are jax, torch"),
        ([TASK, "comm=float23"], "comm=float23: unknown; did you mean float32"),
        ([TASK, "scale=lapto"], "scale=lapto: unknown; did you mean laptop?"),
        ([TASK, "recipe=spngd-32"], "recipe=spngd-32: unknown; did you mean spngd-32k"),
        (["experiment=A1-15"], "experiment=A1-15: unknown; did you mean A1-1"),
        ([TASK, "optimizer.lrr=1"], "optimizer.lrr: unknown; did you mean lr?"),
        ([TASK, "batch_size=7"], "batch_size: unknown; did you mean task.batch_size?"),
        ([TASK, "max_step=1"], "max_step: unknown; did you mean max_steps"),
        ([TASK, "optimizer.lr=fast"], "optimizer.lr=fast: must be of type float"),
        ([TASK, "max_steps=1.5"], "max_steps=1.5: must be of type int"),
        ([TASK, "task.batch_size=sixty"], "task.batch_size=sixty: must be of type int"),
        ([TASK, "deterministic=1"], "deterministic=1: must be of type bool"),
        ([TASK, "world=0"], "world=0: must be at least 1"),
        ([TASK, "seed=-1"], "seed=-1: must be at least 0"),
        ([TASK, "precision=half"], "precision=half: must be one of float32"),
        ([TASK, "require=yes"], "require=yes: must be target or null"),
        ([TASK, "device=tpu"], "device=tpu: must be one of auto, cpu, cuda"),
        ([TASK, "optimizer.damping=1"], "optimizer.damping: unknown"),
        ([TASK, "optimizer=adamw", "optimizer.beta1=1.5"], "optimizer.beta1=1.5: must be below 1"),
        ([TASK, "optimizer=soap", "optimizer.beta2=-1.0"], "optimizer.beta2=-1.0: must be at least 0"),
        ([TASK, "optimizer.lr=nan"], "optimizer.lr=nan: must be finite"),
        ([TASK, "optimizer=shampoo", "optimizer.block_size=0"], "optimizer.block_size=0: must be at least 1"),
        ([TASK, "optimizer=kfac", "optimizer.inverse_interval=0"], "inverse_interval=0: must be at least 1"),
        ([TASK, "comm.bucket_mib=-1"], "comm.bucket_mib=-1: must be at least 0"),
        ([TASK, "comm.codec=fp8"], "comm.codec=fp8: no such codec; there are bfloat16"),
        ([TASK, "comm.factors.codec=float12"], "comm.factors.codec=float12: no such codec; did you mean float32"),
        ([TASK, "task.targets=[true]"], "task.targets.0=True: must be a valid number"),
        ([TASK, "comm.kinds={conv2d: 1}"], "comm.kinds.conv2d=1: must be a valid dictionary"),
        ([TASK, "launch.module=os"], "launch.module=os: the module follows from the choice; set launch="),
        ([TASK, "task.source.data_dir="], "task.source.data_dir=: empty; write task.source.data_dir=PATH"),
        ([], "no task; set task=NAME: autoencoder, bert"),
        ([TASK, "seed"], "seed"),
    ],
)
def test_composition_says_what_is_wrong(overrides: list[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        for run in expand_sweep(overrides):
            configure.resolve(run)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_part_of_comm_may_be_named() -> None:
    long = "{module: suite.comm.codecs.int8}"
    for place in ("codec", "inner", "factors.codec"):
        named, spelt = (configure.resolve([TASK, f"comm.{place}={word}"]) for word in ("int8", long))
        assert named == spelt
    found = configure.resolve(
        [TASK, "comm=fp8", "comm.algorithm=gather", "comm.topology=leader", "comm.schedule=stale"]
    )
    modules = {
        part: getattr(found.comm, part).module.rpartition(".")[2] for part in ("algorithm", "topology", "schedule")
    }
    assert modules == {"algorithm": "gather", "topology": "leader", "schedule": "stale"}
    table = {"module": "suite.comm.codecs.table", "bits": 3}  # and none of fp8's options
    spelt = configure.resolve([TASK, "comm=fp8", "comm.codec={module: suite.comm.codecs.table, bits: 3}"])
    assert spelt.comm.codec.plain() == table


def test_a_preset_of_another_optimizer_is_named() -> None:
    for words, says in [
        (
            ["optimizer=sgd", "comm=kfac_stale"],
            "optimizer.factor_interval: sgd has no such option; comm=kfac_stale is for",
        ),
        (["optimizer=lars", "recipe=spngd-32k"], "recipe=spngd-32k is for another optimizer"),
    ]:
        typed = [TASK, *words]
        with pytest.raises(UserError, match=says):
            configure.reject_unread(configure.resolve(typed), typed)
        with pytest.raises(UserError, match=says):
            plan.main(typed)


def test_task_with_and_without_plus_are_the_same_run() -> None:
    assert configure.resolve(["+task=resnet50"]) == configure.resolve(["task=resnet50"])


@pytest.mark.parametrize(
    "task, recipe, optimizer, lr",
    [
        ("bert", "bert-lamb-phase1", "lamb", 6e-3),
        ("bert", "bert-lamb-phase2", "lamb", 4e-3),
        ("dlrm", "mlperf-dcnv2-65k", "adagrad", 5e-3),
        ("caffenet", "bvlc-caffenet", "sgd", 0.01),
    ],
)
def test_a_published_recipe_brings_its_optimizer(task: str, recipe: str, optimizer: str, lr: float) -> None:
    """Not the task's default one at the recipe's rates; a tuned recipe has the default one, and an own choice wins."""
    found = configure.resolve([f"+task={task}", "scale=paper", f"recipe={recipe}"])
    assert (found.optimizer.name, found.optimizer.lr) == (optimizer, lr)
    assert configure.resolve(["+task=bert", "recipe=bert-adamw-laptop"]).optimizer.name == "adamw"
    chosen = configure.compose_nodes([f"+task={task}", "optimizer=lars", f"recipe={recipe}"])
    assert chosen["optimizer"]["name"] == "lars"


@pytest.mark.quick
def test_a_sweep_is_every_combination() -> None:
    runs = expand_sweep(["+task=resnet50", "optimizer=sgd,kfac", "seed=range(2)"])
    assert [run[1:] for run in runs] == [[f"optimizer={o}", f"seed={s}"] for o in ("sgd", "kfac") for s in (0, 1)]


@pytest.mark.quick
def test_overriding_a_tuned_value_leaves_the_recipe() -> None:
    tuned = configure.resolve(["task=resnet50", "optimizer=kfac"]).tuning
    other = configure.resolve(["task=resnet50", "optimizer=kfac", "optimizer.lr=0.5"]).tuning
    assert other.source == "command line" and other.trials == 0
    assert other.origin == tuned.source and other.changed == ("optimizer.lr=0.5",)
    divided = configure.resolve(["task=resnet50", "optimizer=kfac", "world=2", "accumulate=2"]).tuning
    assert divided == tuned


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (conftest.TESTS.parent / "conf/experiment").glob("*.yaml"))
)
def test_every_experiment_is_its_published_row(name: str) -> None:
    """Batch and steps equal the row that names it; its recipe names the row its values come from."""
    from suite import published

    config, row = configure.resolve([f"experiment={name}"]), published.find_row(name)
    assert config.task.batch_size == row.batch_size
    assert config.max_steps == row.steps
    assert config.scale == "paper"
    published.find_row(config.tuning.source)
    if row.devices:
        assert config.world == row.devices


def call(suite_command: Any, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    done = suite_command(*arguments, **environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_an_error_ends_the_process_with_exit_code_2_and_one_line(suite_command: Any) -> None:
    for arguments, says in (
        ((TASK, "optimizer=kfak"), "did you mean kfac or kfac_jax?"),
        ((TASK, "backend=jax", "device=cuda", "max_steps=1"), "device=cuda"),  # this process's jax has devices already
    ):
        done = call(suite_command, *arguments)
        assert done.returncode == 2, (arguments, done.stdout, done.stderr)
        lines = [line for line in done.stderr.splitlines() if line.startswith("suite: ")]
        assert len(lines) == 1 and says in lines[0], (arguments, done.stderr)


def test_an_interruption_before_the_first_step_is_one_line(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_dispatch", interrupt)
    code, text = suite(TASK)
    assert code == 130 and text.strip() == "suite: interrupted at once; nothing more was saved"


def test_errors_are_one_line(suite: Any) -> None:
    for arguments, says in (
        (("lst",), "lst: no such verb; did you mean list?"),
        (("task=dlrm", "plan"), "plan: a verb comes first; write suite plan, then the settings and options"),
        ((TASK, "seed=0,1"), "several values for one key; use -m to run them all"),
        ((TASK, "world=3"), "task.batch_size=64: not divisible by world"),
        ((TASK, "accumulate=4"), "task.batch_size=64: not divisible"),
        ((TASK, "scale=gpu"), "data_dir="),
        ((TASK, "task.data=folder", "data_dir=/nowhere"), "/nowhere"),
        ((TASK, "device=cuda", "max_steps=1"), "device=cuda"),
        (("--config-dir", "/nowhere", TASK), "/nowhere: no such directory"),
        ((TASK, "task.erase=0.5"), "task.erase=0.5"),
    ):
        code, said = suite(*arguments)
        assert code == 2, (arguments, said)
        lines = [line for line in said.splitlines() if line.startswith("suite: ")]
        assert len(lines) == 1 and says in lines[0], (arguments, said)


@pytest.mark.slow
def test_compile_without_a_compiler_is_one_line_and_leaves_no_result(suite_command: Any, tmp_path: Path) -> None:
    done = call(suite_command, TASK, "compile=true", "max_steps=1", "track=none", CXX="no-such-compiler")
    assert done.returncode == 2 and "there is no no-such-compiler here; set compile=false" in done.stderr
    assert not list(tmp_path.rglob("result.json"))


def test_an_unreadable_image_is_named_or_counted(suite: Any, tmp_path: Path) -> None:
    from written import write_jpeg

    write_jpeg(tmp_path / "images", train=128, valid=32)
    bad = sorted((tmp_path / "images" / "train").rglob("*.JPEG"))[0]
    bad.write_bytes(bad.read_bytes()[:200])
    run = (TASK, "task.data=folder", "data_dir=images", "task.image_size=32", "max_steps=2", "track=none", "threads=1")
    code, said = suite(*run, "task.targets=[99]")
    assert code == 2 and bad.name in said
    code, said = suite(*run, "task.targets=[99]", "task.on_error=skip", "run_dir=skipped")
    assert code == 0, said
    result = json.loads((tmp_path / "skipped" / "result.json").read_text())
    assert [Path(name).name for name in result["data"]["skipped"]] == [bad.name]


SCALES = [
    ("laptop", "auto", "float32", None),
    ("gpu", "cuda", "bfloat16", 450_410),
    ("paper", "cuda", "bfloat16", 14_076),
]


@pytest.mark.parametrize("scale, device, precision, steps", SCALES)
def test_a_scale_sets_what_it_says(scale: str, device: str, precision: str, steps: int | None) -> None:
    words = ["task=resnet50", f"scale={scale}", "recipe=null"]
    config = configure.resolve_training(words)
    assert (config.scale, config.device, config.precision) == (scale, device, precision)
    assert steps is None or config.max_steps == steps
    assert configure.resolve_training([*words, "precision=tf32"]).precision == "tf32"


@pytest.mark.parametrize("name", list_options("experiment"))
def test_a_published_row_is_repeated_in_float32(name: str) -> None:
    assert configure.resolve_training([f"experiment={name}"]).precision == "float32"


@pytest.mark.parametrize("threads", ["0", "-1", "many", "1.5", "true"])
def test_threads_must_be_a_number_or_auto(suite, threads: str) -> None:
    code, said = suite("+task=resnet50", f"threads={threads}")
    assert code == 2 and said.startswith(f"suite: threads={threads.title() if threads == 'true' else threads}: must be")


def test_a_suggestion_names_a_setting_once(suite) -> None:
    code, said = suite("+task=resnet50", "sclae=laptop")
    assert code == 2 and said.count(" scale ") == 1


def test_the_preset_kfac_stale_works_as_listed() -> None:
    optimizer = configure.resolve(["+task=resnet50", "comm=kfac_stale", "optimizer=kfac", "world=2"]).optimizer
    assert (optimizer.stale, optimizer.factor_interval, optimizer.inverse_interval) == (True, 1, 1)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    commit, _ = environment.read_revision()
    for words in (["--version"], ["task=resnet50", "--version"]):
        assert cli.main(words) == 0
        assert capsys.readouterr().out.startswith(f"suite {suite.__version__}{f' (commit {commit}' if commit else ''}")


@pytest.mark.parametrize("typed", ["tsk=resnet50", "+tsk=resnet50", "tasks=resnet50 optimizer=sgd"])
def test_a_misspelt_task_is_named(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    key = typed.partition("=")[0].lstrip("+")
    assert cli.main(typed.split()) == 2
    assert capsys.readouterr().err.startswith(f"suite: {key}: unknown; did you mean task")


@pytest.mark.parametrize("values", ["0,0,1", "0,1,0"])
def test_a_value_given_twice_is_one_run_and_the_sweep_says_so(
    values: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run_all(commands: list[list[str]], runs: Any, directory: Any, *, apart: bool) -> int:
        ran.extend(commands)
        return 0

    monkeypatch.setattr(cli, "_run_all", run_all)
    assert cli.main(["-m", "task=resnet50", "track=none", f"seed={values}"]) == 0
    assert [command[-1] for command in ran] == ["seed=0", "seed=1"]
    assert ": the same run as an earlier one of this sweep; it runs once" in capsys.readouterr().err
    ran.clear()
    assert cli.main(["-m", "task=resnet50", "track=none", f"seed={values}", "force=true"]) == 0
    assert len(ran) == 3, "a forced run is made again"
