"""Records that a run left behind: in its directory, and in MLflow's store."""

import json
import sqlite3
from pathlib import Path
from typing import Any

from suite.record import record
from suite.record.record import make_result
from suite.track import server


def result_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def find_faults(content: dict[str, Any]) -> list[str]:
    """Return what differs from the format of a result."""
    try:
        make_result(content)
    except ValueError as error:
        return [str(error)]
    return []


def query(store: Path, sql: str) -> list[Any]:
    with sqlite3.connect(store) as database:
        return database.execute(sql).fetchall()


def history(run_id: str) -> dict[str, list[tuple[int, float]]]:
    """Every metric of a run as (step, value), by key."""
    with server.connect_client() as client:
        keys = client.get_run(run_id).data.metrics
        return {key: sorted((m.step, m.value) for m in client.get_metric_history(run_id, key)) for key in keys}


def tags(run_id: str) -> dict[str, str]:
    with server.connect_client() as client:
        return client.get_run(run_id).data.tags


def status(run_id: str) -> str:
    with server.connect_client() as client:
        return client.get_run(run_id).info.status


def cut(run: Path, step: int, *, seconds: float = 0.0) -> None:
    """Make it a run that was interrupted after `step` steps, or one that took longer."""
    kept = []
    for event in record.read_events(run / "events.jsonl"):
        if event["event"] in ("step", "evaluated"):
            event["train_seconds"] += seconds
        if event["event"] == "started" or (event["event"] != "finished" and event["step"] <= step):
            kept.append(event)
    kept.append({"event": "finished", "step": step, "outcome": {"kind": "interrupted"}, "facts": kept[0]["facts"]})
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in kept))
    (run / "result.json").unlink()


def artifacts(run_id: str, into: Path) -> dict[str, bytes]:
    with server.connect_client() as client:
        folder = Path(client.download_artifacts(run_id, "", str(into)))
        return {file.name: file.read_bytes() for file in folder.iterdir()}
