"""MLflow as a view of run directories: the JSON there is the truth, and what MLflow lacks can be sent at any time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from suite import published, record
from suite.published import Row
from suite.track import picture, server
from suite.track.closing import choose
from suite.track.points import Point, points
from suite.track.server import Client, Run
from suite.track.view import View, experiment_name, snapshot, task_of

PARENT = "mlflow.parentRunId"
ROWS = "published"  # tag of an experiment: ids of the published rows in it
MOST_METRICS, MOST_PARAMETERS = 1000, 100  # in one request, MLflow's REST limits


def send(directory: Path, *, uri: str | None = None, parent: str | None = None) -> str:
    """Make or continue the MLflow run of a run directory; a second call adds nothing.

    Args:
        directory: of a run, finished or not.
        uri: of the tracking server; by default MLFLOW_TRACKING_URI, or mlflow.db in the current directory.
        parent: id of the MLflow run below which this one is shown.

    Returns:
        The id of the MLflow run.

    Raises:
        UserError: MLflow does not answer, or the directory holds no run.
    """
    with server.connected(uri) as client:
        return replay(client, directory, parent=parent)[0]


def finish(config: Mapping[str, Any], directory: Path, *, parent: str | None = None) -> str | None:
    """Send a run that has just ended, and the published rows that stand beside it; nothing under track=none.

    The other rows of the task are left to `suite sync`: on a server each one costs three requests.

    Raises:
        UserError: MLflow does not answer. The run is safe; the message says how to send it later.
    """
    if config["track"]["name"] == "none":
        return None
    with server.connected() as client:
        run_id, _ = replay(client, directory, parent=parent)
        rows = published.rows_for(config["task"]["name"])
        shown = choose(rows, optimizer=record.method(config), batch_size=config["task"]["batch_size"])
        publish(client, client.get_run(run_id).info.experiment_id, shown)
        return run_id


def parent_run(name: str, *, config: Mapping[str, Any], uri: str | None = None) -> str:
    """Make the run below which a sweep's runs are shown, in the experiment of this configuration; returns its id."""
    with server.connected(uri) as client:
        where = server.experiment(client, experiment_name(config, task_of(config).data.name))
        run = client.create_run(where, run_name=name, tags={"published": "false", "sweep": "true"})
        client.set_terminated(run.info.run_id)
        return run.info.run_id


def replay(client: Client, directory: Path, *, parent: str | None = None) -> tuple[str, bool]:
    """What `send` does, with a client; returns the run's id and whether anything was missing."""
    with snapshot(directory) as view:
        where = server.experiment(client, view.experiment)
        run = next(server.search(client, [where], f"tags.execution_id = '{view.result['execution_id']}'"), None)
        if run and _complete(run, view, parent):
            return run.info.run_id, False
        parent = parent or (run.data.tags.get(PARENT) if run else None)
        wanted = points(view.result, view.events, finished=view.finished)
        sent = _sent(client, run) if run else set()
        if run and not sent <= wanted.keys():
            # The run was cut back to a checkpoint that lies before what had been sent; points cannot be taken back.
            client.delete_run(run.info.run_id)
            run, sent = None, set()
        run = run or client.create_run(where, start_time=view.began, run_name=view.name, tags=view.tags())
        _log(client, run.info.run_id, view, [point for key, point in wanted.items() if key not in sent])
        _close(client, run.info.run_id, view, {PARENT: parent} if parent else {})
        return run.info.run_id, True


def _complete(run: Run, view: View, parent: str | None) -> bool:
    tags = run.data.tags
    return (
        view.digests().items() <= tags.items() and run.info.status == view.status and parent in (None, tags.get(PARENT))
    )


def _sent(client: Client, run: Run) -> set[tuple[str, int]]:
    return {(key, point.step) for key in run.data.metrics for point in client.get_metric_history(run.info.run_id, key)}


def _log(client: Client, run_id: str, view: View, missing: Sequence[Point]) -> None:
    from mlflow.entities import Metric, Param

    parameters = [Param(name, value) for name, value in view.parameters().items()]
    for part in _parts(parameters, MOST_PARAMETERS):
        client.log_batch(run_id, params=part)
    metrics = [Metric(point.key, point.value, view.began + point.time, point.step) for point in missing]
    for part in _parts(metrics, MOST_METRICS):
        client.log_batch(run_id, metrics=part)
    (view.folder / "curve.svg").write_bytes(picture.curve(view.result, view.events, title=view.name))
    client.log_artifacts(run_id, str(view.folder))


def _close(client: Client, run_id: str, view: View, more: Mapping[str, str]) -> None:
    """Set the tags, digests last of all: they say that everything before them has arrived."""
    from mlflow.entities import RunTag

    if view.status == "RUNNING":
        client.update_run(run_id, status="RUNNING")
    else:
        client.set_terminated(run_id, view.status, view.ended)
    for tags in ({**view.tags(), **more}, view.digests()):
        client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])


def publish(client: Client, experiment: str, rows: Iterable[Row]) -> int:
    """Add those published rows that an experiment (by id) lacks; returns how many were added.

    Only rows whose value is a number; their start is 1970, so that lists by date show the user's own runs first.
    """
    wanted = {row.id: row for row in rows if _number(row.value)}
    known = set(client.get_experiment(experiment).tags.get(ROWS, "").split())
    if wanted.keys() <= known:
        return 0
    # The tag only saves this search: it is set last, and may be missing rows but never names one that is not there.
    known |= {run.data.tags["row"] for run in server.search(client, [experiment], "tags.published = 'true'")}
    missing = [row for id, row in wanted.items() if id not in known]
    for row in missing:
        _publish(client, experiment, row)
    client.set_experiment_tag(experiment, ROWS, " ".join(sorted(known | wanted.keys())))
    return len(missing)


def _publish(client: Client, experiment: str, row: Row) -> None:
    from mlflow.entities import Metric, Param

    printed = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "details"}
    printed |= {f"details.{name}": value for name, value in row.details.items()}
    printed = {name: value for name, value in printed.items() if value is not None}
    tags = {
        "published": "true",
        "row": row.id,
        "mlflow.note.content": f"{row.citation}\n\n{row.title}, {row.where_seen}",
    }
    run = client.create_run(experiment, start_time=0, run_name=f"{row.id} {row.optimizer or row.metric}", tags=tags)
    client.log_batch(
        run.info.run_id,
        metrics=[Metric(f"published/{name}", float(value), 0, 0) for name, value in printed.items() if _number(value)],
        params=[Param(f"published.{name}", str(value)) for name, value in printed.items() if not _number(value)],
    )
    client.set_terminated(run.info.run_id, end_time=0)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parts(values: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + most] for start in range(0, len(values), most))
