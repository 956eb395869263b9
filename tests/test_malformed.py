"""Overrides that nobody should type, and damaged files: each is one line of error, and none trains."""

import itertools
import json
import random
import shutil
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click_lines import make_line, write_logs
from written import generate_documents, write_documents

from suite.claims.claim import parse_claims
from suite.contract import UserError
from suite.entries import doubts, intake
from suite.entries.strict import Unreadable
from suite.record import record
from suite.settings.configure import reject_unread, resolve
from suite.settings.overrides import expand_sweep
from suite.settings.run import Run
from suite.tasks.bert import preparation as bert
from suite.tasks.bert import records
from suite.tasks.bert.sample import Hiding
from suite.tasks.dlrm import criteo
from suite.tasks.transformer import preparation as translation
from suite.tasks.transformer.corpus import Corpus
from suite.training import checkpoint
from suite.training.adaptation import read_decisions

TASK = "task=resnet50"
GROUPS = ("task", "optimizer", "comm", "schedule", "launch", "track", "tuning", "comm.codec", "comm.factors")
LEAVES = ("seed", "max_steps", "optimizer.lr", "task.batch_size", "schedule.warmup", "comm.bucket_mib", "world")
LEAVES += ("accumulate", "eval_every", "log_every", "prefetch")
NONSENSE = ("abc", "a b", "0x1", "1.5.2", "[1,2]", "{a: 1}", "null", "''", "true", "-1", "1e400", "nan")
TYPOS = (
    "sede",
    "max_step",
    "optimiser",
    "task.batchsize",
    "optimizer.learning_rate",
    "comm.bukcet_mib",
    "schedule.shap",
)


def malformed() -> Iterator[str]:
    """About three hundred, of every kind."""
    for key, plus in itertools.product(TYPOS, ("", "+", "++")):
        yield f"{plus}{key}=1"
    for key, value in itertools.product(LEAVES, NONSENSE):
        yield f"{key}={value}"
    for group, value in itertools.product(GROUPS, ("3", "null", "[1]", "abc", "{nonsense: 1}")):
        yield f"{group}={value}"
    for key in (*LEAVES, *GROUPS, "task.name", "optimizer.module", "scale", "backend"):
        yield f"~{key}"
        yield f"~{key}=1"
        yield f"{key}"
    for key, kind in itertools.product(
        ("seed", "optimizer.lr", "task"), ("glob(*)", "interval(0,1)", "choice()", "sort(")
    ):
        yield f"{key}={kind}"
    yield from (
        "optimizer.name=adamw",
        "task.name=x",
        "task.targets=[]",
        "task.targets=[a]",
        "seed=18446744073709551616",
    )
    yield from (
        "schedule.shape=round",
        "schedule.floor=-1",
        "task.data=nothing",
        "task.variant=v9",
        "task.blocks=4",
        "=1",
        "=",
    )
    yield from (
        "task.source.size=a",
        "task.source.sizes=1",
        "comm.codec.module=nowhere.codec",
        "optimizer.module=nowhere",
        "a b=1",
    )
    yield from ("tuned.x=1", "tuned=3", "tuning.source=recipe", "tuning.trials=50", "hydra.run.dir=x", "sgd@task=1")
    yield from ("optimizer.module=suite.optimizers.lars", "task.module=suite.tasks.bert", "hydra/launcher=local")
    yield from ("task.scales.laptop.max_steps=3", "task.scales.huge={}", "task.sources=3", "task.default_optimizer=sgd")
    yield from (
        "task.sources.digits.nothing=1",
        "task.sources.nothing.options.size=3",
        "task.sources.digits.image_size.x=3",
    )
    yield from ("schedule.begin=-3", "schedule.end=-5", "schedule.power=-1", "schedule.factor=-1")
    yield from ("schedule.boundaries=[]", "schedule.boundaries=[0.8,0.2]", "schedule.boundaries=[0.5,2]")
    yield from ("schedule.begin=9 schedule.end=3", "run_dir=", "data_dir=", "init_from=", "decisions=")
    yield from (
        "comm.kinds.linear.codec=3",
        "comm.kinds.linear.nothing=1",
        "comm.candidates.x=1",
        "comm.policy=abc",
        "network=lan",
    )
    yield from (
        "partition=auto partition.stages=0",
        "threads=0",
        "threads=many",
        "require=all",
        "save=all",
        "resume=maybe",
        "--cfg=x",
    )
    yield from ("a=b=c", "==", "seed=１", "😀=1", "seed=range(3,1)", "seed=${nothing}", "seed=${oc.env:NOTHING}")


MALFORMED = list(dict.fromkeys(malformed()))


def answer(override: str) -> str:
    """Return the error; "" where the override makes a run."""
    try:
        for words in expand_sweep([TASK, *override.split(" ")] if " " in override else [TASK, override]):
            assert isinstance(resolve(words), Run)
    except UserError as error:
        return str(error)
    return ""


def check(overrides: list[str]) -> None:
    answers = {override: answer(override) for override in overrides}
    assert not {override: said for override, said in answers.items() if "\n" in said}
    assert not {override for override, said in answers.items() if not said}, "accepted"
    hydra = ("++", "Error merging", "Lexer", "mismatched", "Ambiguous")
    assert not {said for said in answers.values() if any(word in said for word in hydra)}, "Hydra's own words"


@pytest.mark.quick
def test_malformed_overrides_are_one_line_of_error() -> None:
    check(MALFORMED[::12])


@pytest.mark.slow
def test_three_hundred_malformed_overrides() -> None:
    assert len(MALFORMED) >= 300
    check(MALFORMED)


def test_a_schedule_option_that_its_shape_does_not_read_is_an_error() -> None:
    words = [TASK, "schedule.shape=staircase", "schedule.boundaries=[0.5]", "schedule.factor=0.1"]
    reject_unread(resolve(words), words)
    words[1] = "schedule.shape=cosine"
    with pytest.raises(UserError, match=r"schedule\.boundaries: schedule\.shape=cosine does not read it"):
        reject_unread(resolve(words), words)


def test_several_values_are_no_value_of_one_run() -> None:
    with pytest.raises(UserError, match="save=best,final: several values for one key; use -m"):
        resolve([TASK, "save=best,final"])


def test_own_groups_are_in_a_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--config-dir .*nowhere: no such directory"):
        resolve([TASK], tmp_path / "nowhere")


class Specimen(NamedTuple):
    """A folder whose files are damaged one at a time.

    Attributes:
        folder: with the files.
        read: reads the folder, and returns what it contains.
        sealed: whether checksums cover every byte that changes what is read.
    """

    folder: Path
    read: Callable[[Path], Any]
    sealed: bool


@pytest.fixture(scope="module")
def specimens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Specimen]:
    """Prepared data, a checkpoint, and the small files of a run, of claims and of doubts."""
    folder = tmp_path_factory.mktemp("specimens")
    for name in ("texts", "pages", "small"):
        (folder / name).mkdir()
    for name, count in (("train", 30), ("valid", 5)):
        for language in ("en", "fr"):
            sentences = "".join(f"{language} word{row % 7} and more{row}.\n" for row in range(count))
            (folder / "texts" / f"{name}.{language}").write_text(sentences)
    write_documents(folder / "pages" / "wiki_00", generate_documents(12))
    lines = [make_line(str(row % 2), word=f"{row:x}") for row in range(30)]
    criteo.prepare(write_logs(folder / "raw", lines, lines[:5]), folder / "clicks")
    translation.prepare(folder / "texts", folder / "pairs", vocabulary=120, longest=50, ratio=3.0)
    bert.prepare(
        folder / "pages", folder / "records", sequence=16, predictions=3, vocabulary=200, duplicates=1, valid=0.3
    )
    (folder / "saved").mkdir()
    arrays = {"weights": np.arange(5.0, dtype=np.float32), "residual": np.ones((1, 3), np.float32)}
    skeleton = {"own": {"residual": "residuals"}, "tree": [1]}
    checkpoint.save_checkpoint(folder / "saved", (arrays, skeleton), lambda: {"config_hash": "c", "world": 1}, step=7)
    results = Path(str(resources.files("suite.results")))
    made = json.loads(min(results.glob("runs/resnet50/*.json")).read_text())
    header = {name: made[name] for name in ("hash", "fingerprint", "execution_id", "task_version", "command")}
    decided = {"step": 0, "mode": "float32", "steps": None, "why": {"a": 1}}
    small = {
        "result.json": made,
        "header.json": {**header, "environment": made["environment"]},
        "decisions.json": {"decisions": [decided, {**decided, "step": 4}]},
    }
    for name, content in small.items():
        (folder / "small" / name).write_text(json.dumps(content))
    (folder / "small" / "events.jsonl").write_text('{"event": "started", "step": 0}\n{"event": "step", "step": 1}\n')
    shutil.copy(min(results.glob("claims/*.yaml")), folder / "small" / "claims.yaml")
    doubt = "who: A. Reader\ndate: 2026-01-02\nrow: {task: resnet50}\nfinding: These seem slow.\nstatus: open\n"
    (folder / "small" / "doubt.yaml").write_text(doubt)
    return {
        "clicks": Specimen(folder / "clicks", read_clicks, True),
        "pairs": Specimen(folder / "pairs", read_pairs, True),
        "records": Specimen(folder / "records", read_records, True),
        "checkpoint": Specimen(folder / "saved", lambda path: checkpoint.load_checkpoint(path, "c"), True),
        "small": Specimen(folder / "small", read_small, False),
    }


def read_clicks(folder: Path) -> Any:
    found = criteo.Records(folder)
    rows = [found.read(split, np.arange(count)) for split, count in found.data.samples.items()]
    return found.rows, found.data.identity, found.data.skipped, rows


def read_pairs(folder: Path) -> Any:
    found = Corpus(str(folder), languages=("en", "fr"), length=30, held_out="valid")
    sides = [found.read(split, np.arange(count)) for split, count in found.data.samples.items()]
    return found.vocabulary, found.data.identity, found.data.dropped, sides, found.references("valid", np.arange(5))


def read_records(folder: Path) -> Any:
    records._mapped.cache_clear()
    found = records.Source(Hiding(0.15, 3, False), sequence=16, next_sentence=True, data_dir=str(folder))
    rows = [found.read(split, np.arange(count)).tobytes() for split, count in found.data.samples.items()]
    return found.vocabulary, found.hidden_each, found.data.identity, found.data.dropped, rows


def read_small(folder: Path) -> None:
    """Each as its command reads it; what is left out is no error."""
    intake.read_results([folder / "result.json"])
    record.read_header(folder)
    read_decisions(str(folder / "decisions.json"))
    record.read_events(folder / "events.jsonl")
    parse_claims((folder / "claims.yaml").read_text(encoding="utf-8", errors="replace"), "claims.yaml")
    doubts.read_doubts(folder / "doubt.yaml")


def damage(content: bytes, draw: random.Random) -> bytes:
    """Cut, flip, overwrite, repeat, nest or replace a part of a file."""
    place = draw.randrange(len(content) or 1)
    stop = min(len(content), place + draw.randrange(1, 40))
    deep = b"[" * 5000 + b"]" * 5000
    part = draw.choice([b"\0" * (stop - place), b"\xff", b"null", b"{}", b"-1", b"9" * 30, b'"', b"\n", deep])
    flipped = bytes([content[place] ^ 1 << draw.randrange(8)]) if content else b"\0"
    return draw.choice(
        [
            content[:place],
            content[:place] + flipped + content[place + 1 :],
            content[:place] + part + content[stop:],
            content[:place] + content[place:stop] * 2 + content[stop:],
            content[:place] + content[stop:],
            draw.choice([b"", b"null", b"[]", b"{}", b"3", deep]),
        ]
    )


def read_damaged(specimen: Specimen, seed: int) -> str:
    """Damage one file, read the folder, and restore the file; return "" if the outcome is right, else what it was."""
    draw = random.Random(seed)
    files = sorted(path for path in specimen.folder.rglob("*") if path.is_file())
    path = draw.choice(files)
    whole = path.read_bytes()
    expected = repr(specimen.read(specimen.folder))
    path.write_bytes(damage(whole, draw))
    try:
        if repr(specimen.read(specimen.folder)) != expected and specimen.sealed:
            return f"{path.name}, seed {seed}: accepted"
    except (UserError, Unreadable) as error:
        lines = str(error).splitlines()
        return f"{path.name}, seed {seed}: {len(lines)} lines" if len(lines) != 1 and specimen.sealed else ""
    except Exception as error:
        return f"{path.name}, seed {seed}: {type(error).__name__}: {error}"
    finally:
        path.write_bytes(whole)
    return ""


@pytest.mark.parametrize("name", ["clicks", "pairs", "records", "checkpoint", "small"])
def test_damaged_files_are_refused_or_change_nothing(specimens: dict[str, Specimen], name: str) -> None:
    faults = [read_damaged(specimens[name], seed) for seed in range(25)]
    assert not [fault for fault in faults if fault]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clicks", "pairs", "records", "checkpoint", "small"])
def test_a_thousand_damaged_files(specimens: dict[str, Specimen], name: str) -> None:
    faults = [read_damaged(specimens[name], seed) for seed in range(25, 225)]
    assert not [fault for fault in faults if fault]
