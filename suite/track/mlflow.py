"""Sends run directories to MLflow. The files of a run are the original; what MLflow lacks can be sent at any time."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from suite import published
from suite.published import Row
from suite.published.matching import choose_rows
from suite.record import record
from suite.settings.run import AnyRun
from suite.track import picture, server
from suite.track.parent import PARENT, name_run
from suite.track.points import Point, Points, list_points
from suite.track.run_report import make_report, render_page
from suite.track.server import MOST_TAG, Client, Run
from suite.track.view import CURVE, REPORT, View, view_run

NOTE = "mlflow.note.content"  # the description that MLflow's page of a run shows
Keys = set[tuple[str, int]]  # (key, step) of metric points
ROWS = "published"  # tag of an experiment: the ids of the published rows that it contains
MOST_METRICS, MOST_PARAMETERS = 1000, 100  # limits of one request of MLflow's REST API
MOST_DIGEST = 36  # characters of a data set's digest (mlflow.utils.validation)


def send_run(directory: Path, *, uri: str | None = None, parent: str | None = None) -> str:
    """Create or complete the MLflow run of a run directory; a second call changes nothing.

    Args:
        directory: of a run, finished or not.
        uri: of the tracking server; by default MLFLOW_TRACKING_URI, or mlflow.db in the current directory.
        parent: id of the MLflow run below which this one is shown.

    Returns:
        The id of the MLflow run.

    Raises:
        UserError: if MLflow does not answer, or the directory is no run directory.
    """
    with server.connect_client(uri) as client:
        return send_directory(client, directory, parent=parent)[0]


def finish_run(run: AnyRun, directory: Path, rows: Sequence[Row], *, parent: str | None = None) -> str:
    """Send a run that has just ended.

    With `track.published`, send also the published rows to compare it with. `suite sync` sends the other rows of the
    task, because each one costs three requests.

    Args:
        run: the run.
        directory: of the run.
        rows: every published row of its task.
        parent: id of the MLflow run below which this one is shown.

    Returns:
        The id of the MLflow run.

    Raises:
        UserError: if MLflow does not answer; the message says how to send the run later.
    """
    with server.connect_client() as client:
        run_id, _ = send_directory(client, directory, rows=rows, parent=parent)
        result = directory / "result.json"
        if run.track.published and result.exists():  # an interrupted run has none yet
            samples = record.read_result(result).data.samples.get("train", 0)
            publish_rows(client, run.task.name, choose_rows(rows, run, samples=samples))
        return run_id


def send_directory(
    client: Client, directory: Path, *, rows: Sequence[Row] | None = None, parent: str | None = None
) -> tuple[str, bool]:
    """Like `send_run`, with a client, and every published row of the run's task if they are known.

    Returns:
        The id of the MLflow run, and whether anything was missing in it.
    """
    with view_run(directory) as view:
        experiment = server.find_experiment(client, view.experiment)
        runs = list(server.search_runs(client, [experiment], f"tags.execution_id = '{view.result.execution_id}'"))
        complete = list_points(view.result, view.events, finished=view.finished)
        whole = next((run for run in runs if _complete(run, view, parent)), None)
        run, sent = (whole, set(complete)) if whole else _choose_run(client, runs, complete)
        parent = parent or next((run.data.tags[PARENT] for run in runs if PARENT in run.data.tags), None)
        for other in runs:
            if other is not run:  # superseded, or deleted before and restored with the experiment
                client.delete_run(other.info.run_id)
        if whole:
            return whole.info.run_id, False
        name = name_run(client, view, parent)
        if run is None:
            run = client.create_run(experiment, start_time=view.began, run_name=name, tags=view.tags())
            _log_data(client, run.info.run_id, view)
        elif run.info.run_name != name:
            client.update_run(run.info.run_id, name=name)
        note = _write_pages(view, rows)
        _log(client, run.info.run_id, view, [point for key, point in complete.items() if key not in sent])
        _close(client, run.info.run_id, view, note | ({PARENT: parent} if parent else {}))
        return run.info.run_id, True


def _choose_run(client: Client, runs: Sequence[Run], complete: Points) -> tuple[Run | None, Keys]:
    """Choose which of the MLflow runs of one execution to complete.

    A run that was resumed from a checkpoint older than some points sent cannot be completed, because MLflow cannot
    delete points.

    Returns:
        The run with the most points of those that can be completed, or None; and the points that it has.
    """
    sent = [_sent(client, run) for run in runs]
    usable = [index for index, keys in enumerate(sent) if keys <= complete.keys()]
    best = max(usable, key=lambda index: len(sent[index]), default=None)
    return (None, set()) if best is None else (runs[best], sent[best])


def _complete(run: Run, view: View, parent: str | None) -> bool:
    """Return whether an MLflow run has everything of a run directory."""
    tags = run.data.tags
    return (
        view.digests().items() <= tags.items() and run.info.status == view.status and parent in (None, tags.get(PARENT))
    )


def _sent(client: Client, run: Run) -> Keys:
    """(key, step) of every metric point that MLflow has."""
    return {(key, point.step) for key in run.data.metrics for point in client.get_metric_history(run.info.run_id, key)}


def _write_pages(view: View, rows: Sequence[Row] | None) -> dict[str, str]:
    """Write the curve and, of a finished run, its page beside the files to send; return the tag with the page."""
    curve = picture.draw_curve(view.result, view.events, title=view.name)
    (view.folder / CURVE).write_bytes(curve)
    if not view.finished:
        return {}
    report = make_report(view.result, rows=rows, curve=curve)
    (view.folder / REPORT).write_text(render_page([report], "html"), encoding="utf-8")
    return {NOTE: render_page([report], "md")[:MOST_TAG]}


def _log(client: Client, run_id: str, view: View, missing: Sequence[Point]) -> None:
    """Send parameters, the missing metric points and the files."""
    from mlflow.entities import Metric, Param

    parameters = [Param(name, value) for name, value in view.parameters().items()]
    for part in _parts(parameters, MOST_PARAMETERS):
        client.log_batch(run_id, params=part)
    metrics = [Metric(point.key, point.value, view.began + point.time, point.step) for point in missing]
    for part in _parts(metrics, MOST_METRICS):
        client.log_batch(run_id, metrics=part)
    client.log_artifacts(run_id, str(view.folder))


def _log_data(client: Client, run_id: str, view: View) -> None:
    """Log the data as the run's input, with its checksum or version."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    data = view.result.data
    profile = json.dumps({"samples": data.samples, "unit": data.unit, "note": data.note})
    dataset = Dataset(
        name=data.name,
        digest=data.identity[:MOST_DIGEST],
        source_type=data.kind,
        source=data.label,
        profile=profile,
    )
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def _close(client: Client, run_id: str, view: View, extra_tags: Mapping[str, str]) -> None:
    """Set status and tags. The digests come last: they mean that everything else has arrived."""
    from mlflow.entities import RunTag

    if view.status == "RUNNING":
        client.update_run(run_id, status="RUNNING")
    else:
        client.set_terminated(run_id, view.status, view.ended)
    for tags in (view.tags() | dict(extra_tags), view.digests()):
        client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])


def publish_rows(client: Client, task: str, rows: Iterable[Row]) -> int:
    """Add the published rows that MLflow lacks, as runs, in the experiment `published/<task>`.

    Only rows whose value is a number are added. They start in the year of their publication, or now where it is
    unknown, and have no end, so that MLflow shows no duration. If the user has deleted the experiment, none is added.

    Args:
        client: MLflow's client.
        task: name of the task.
        rows: published rows of the task.

    Returns:
        The number of rows added.
    """
    name = f"published/{task}"
    if server.is_deleted(client, name):
        return 0
    experiment = server.find_experiment(client, name)
    numeric = {row.id: row for row in rows if _number(row.value)}
    published_ids = set(client.get_experiment(experiment).tags.get(ROWS, "").split())
    if numeric.keys() <= published_ids:
        return 0
    # The tag only saves this search. It is set last, so it may lack rows, but it never names a row that is missing.
    published_ids |= {
        run.data.tags["row"] for run in server.search_runs(client, [experiment], "tags.published = 'true'")
    }
    missing = [row for id, row in numeric.items() if id not in published_ids]
    for row in missing:
        _publish(client, experiment, row)
    client.set_experiment_tag(experiment, ROWS, " ".join(sorted(published_ids | numeric.keys())))
    return len(missing)


def _publish(client: Client, experiment: str, row: Row) -> None:
    from mlflow.entities import Metric, Param

    printed = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "details"}
    printed |= {f"details.{name}": value for name, value in row.details.items()}
    printed = {name: value for name, value in printed.items() if value is not None}
    tags = {
        "published": "true",
        "row": row.id,
        NOTE: f"{row.citation}\n\n{row.title}, {row.where_seen}",
    }
    name = f"{row.id} {row.optimizer or row.metric}"
    year = published.find_year(row)
    start = round(1000 * datetime(year, 1, 1, tzinfo=UTC).timestamp()) if year else None
    run = client.create_run(experiment, start_time=start, run_name=name, tags=tags)
    client.log_batch(
        run.info.run_id,
        metrics=[Metric(f"published/{name}", float(value), 0, 0) for name, value in printed.items() if _number(value)],
        params=[Param(f"published.{name}", str(value)) for name, value in printed.items() if not _number(value)],
    )
    client.update_run(run.info.run_id, status="FINISHED")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parts(values: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + most] for start in range(0, len(values), most))
