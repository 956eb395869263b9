"""Rebuilds run directories from MLflow's artifacts; rejects runs whose files do not match their digests."""

import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from suite import disk
from suite.contract import UserError
from suite.record import record
from suite.track import server
from suite.track.parent import SWEEP
from suite.track.server import Client, Run
from suite.track.view import CURVE, DIGEST, REPORT, hash_files


def pull_runs(out: Path, *, uri: str | None = None) -> Iterator[tuple[Path, str]]:
    """Write every finished run in MLflow to `<out>/<task>/<hash>`, unless it is there already.

    Yields:
        (directory, outcome) for each run: `written`; `there`; `left out: …` if it has no result yet; or `rejected: …`
        if its files do not match its tags, or differ from those of its execution that are there; then nothing is
        written.

    Raises:
        UserError: if MLflow does not answer.
    """
    disk.make_folder(out)
    with server.connect_client(uri) as client:
        experiments = [experiment.experiment_id for experiment in _experiments(client)]
        for run in server.search_runs(client, experiments, "tags.published = 'false'"):
            tags = run.data.tags
            if SWEEP in tags:
                continue  # the parent of runs
            if DIGEST + "result.json" not in tags:
                cause = f"MLflow run {run.info.run_id} has no result ({run.info.status.lower()})"
                yield out, f"left out: {cause}"
            elif lacking := [name for name in ("task", "hash", "execution_id") if not tags.get(name)]:
                yield out, f"rejected: MLflow run {run.info.run_id}: has no tag {lacking[0]}"
            else:
                yield _pull(client, run, out)


def _pull(client: Client, run: Run, out: Path) -> tuple[Path, str]:
    tags = run.data.tags
    base = out / Path(tags["task"]).name / Path(tags["hash"]).name
    present = next((folder for folder in _executions(base) if _execution(folder) == tags["execution_id"]), None)
    if present:
        if changed := _find_changes(present, tags):
            cause = f"the execution {tags['execution_id']} is in {present}, but with another {changed[0]}"
            return base, f"rejected: MLflow run {run.info.run_id}: {cause}"
        return present, "there"
    with tempfile.TemporaryDirectory(dir=out, prefix=".pull-") as temporary:
        folder = Path(temporary, "run")
        folder.mkdir()
        client.download_artifacts(run.info.run_id, "", str(folder))
        for made_for_mlflow in (CURVE, REPORT):
            (folder / made_for_mlflow).unlink(missing_ok=True)
        try:
            _check(folder, tags)
        except UserError as error:
            return base, f"rejected: MLflow run {run.info.run_id}: {error}"
        for name, milliseconds in (("header.json", run.info.start_time), ("events.jsonl", run.info.end_time)):
            seconds = (milliseconds or 0) / 1000  # View.began and View.ended read these times
            os.utime(folder / name, (seconds, seconds))
        place = next(place for place in _names(base) if not place.exists())
        place.parent.mkdir(exist_ok=True)
        folder.rename(place)
        return place, "written"


def _check(folder: Path, tags: dict[str, str]) -> None:
    """Check that the files are the ones that were sent, and that the result belongs to this run.

    Raises:
        UserError: if they are not.
    """
    if changed := _find_changes(folder, tags):
        raise UserError(f"{', '.join(changed)}: not the file that was sent (sha256)")
    result = record.read_result(folder / "result.json")
    recorded = (record.hash_of(result), result.hash, result.execution_id, result.spec.task)
    if recorded != (tags["hash"], tags["hash"], tags["execution_id"], tags["task"]):
        raise UserError(f"result.json belongs to another run than the tags hash, execution_id and task: {recorded}")


def _find_changes(folder: Path, tags: dict[str, str]) -> list[str]:
    """Return the names of the files that differ from those that were sent, or that only one side has."""
    expected = {name: value for name, value in tags.items() if name.startswith(DIGEST)}
    return sorted({name.removeprefix(DIGEST) for name, _ in expected.items() ^ hash_files(folder).items()})


def _experiments(client: Client) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_experiments(page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _names(base: Path) -> Iterator[Path]:
    """`base`, `base.2`, `base.3`, … as `suite.launch.directories.Directory` counts executions."""
    return itertools.chain([base], (base.with_name(f"{base.name}.{number}") for number in itertools.count(2)))


def _executions(base: Path) -> Iterator[Path]:
    return itertools.takewhile(Path.exists, _names(base))


def _execution(folder: Path) -> str | None:
    header = folder / "header.json"
    return disk.read_json(header)["execution_id"] if header.exists() else None
