"""Rebuilds run directories from MLflow's artifacts, and believes none whose files do not agree with their digests."""

import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from suite import record
from suite.contract import UserError
from suite.track import server
from suite.track.server import Client, Run
from suite.track.view import DIGEST, digests


def pull(out: Path, *, uri: str | None = None) -> Iterator[tuple[Path, str]]:
    """Write every finished run that MLflow holds to `<out>/<task>/<hash>`; what is there already is left alone.

    Yields:
        A directory and `written` or `there`; or, where nothing was written because files and tags disagree, the
        directory that would have been and `refused: …`.

    Raises:
        UserError: MLflow does not answer.
    """
    out.mkdir(parents=True, exist_ok=True)
    with server.connected(uri) as client:
        experiments = [found.experiment_id for found in _experiments(client)]
        for run in server.search(client, experiments, "tags.published = 'false'"):
            if DIGEST + "result.json" in run.data.tags:
                yield _pull(client, run, out)


def _pull(client: Client, run: Run, out: Path) -> tuple[Path, str]:
    tags = run.data.tags
    base = out / Path(tags["task"]).name / Path(tags["hash"]).name
    there = next((folder for folder in _executions(base) if _execution(folder) == tags["execution_id"]), None)
    if there:
        return there, "there"
    with tempfile.TemporaryDirectory(dir=out, prefix=".pull-") as temporary:
        folder = Path(temporary, "run")
        folder.mkdir()
        client.download_artifacts(run.info.run_id, "", str(folder))
        (folder / "curve.svg").unlink(missing_ok=True)
        try:
            _check(folder, tags)
        except UserError as error:
            return base, f"refused: MLflow run {run.info.run_id}: {error}"
        for name, milliseconds in (("header.json", run.info.start_time), ("events.jsonl", run.info.end_time)):
            seconds = (milliseconds or 0) / 1000  # View.began and View.ended read them again
            os.utime(folder / name, (seconds, seconds))
        place = next(place for place in _names(base) if not place.exists())
        place.parent.mkdir(exist_ok=True)
        folder.rename(place)
        return place, "written"


def _check(folder: Path, tags: dict[str, str]) -> None:
    """Refuse files that are not the ones that were sent, or a result that is not of this run."""
    promised = {name: value for name, value in tags.items() if name.startswith(DIGEST)}
    found = digests(folder)
    wrong = sorted(name.removeprefix(DIGEST) for name, _ in promised.items() ^ found.items())
    if wrong:
        raise UserError(f"{', '.join(dict.fromkeys(wrong))}: not the file that was sent (sha256)")
    result = json.loads((folder / "result.json").read_text())
    spec = result["spec"]
    says = (record.config_hash(spec["config"]), result["hash"], result["execution_id"], spec["task"])
    if says != (tags["hash"], tags["hash"], tags["execution_id"], tags["task"]):
        raise UserError(f"result.json is of another run than the tags hash, execution_id and task say: {says}")


def _experiments(client: Client) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_experiments(page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _names(base: Path) -> Iterator[Path]:
    """`base`, `base.2`, `base.3`, … as `suite.run.Directory` counts executions."""
    return itertools.chain([base], (base.with_name(f"{base.name}.{number}") for number in itertools.count(2)))


def _executions(base: Path) -> Iterator[Path]:
    return itertools.takewhile(Path.exists, _names(base))


def _execution(folder: Path) -> str | None:
    header = folder / "header.json"
    return json.loads(header.read_text())["execution_id"] if header.exists() else None
