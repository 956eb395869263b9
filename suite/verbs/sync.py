"""`suite sync`: send run directories to MLflow, or rebuild run directories from MLflow."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from suite import published
from suite.contract import UserError
from suite.track import mlflow, server
from suite.track.address import how_to_open
from suite.track.parent import end_dead_sweeps
from suite.track.pull import pull_runs


def main(arguments: Sequence[str]) -> int:
    """Send run directories to MLflow, or rebuild them from MLflow; 1 if a run was left out or rejected."""
    parser = argparse.ArgumentParser(prog="suite sync", description=__doc__)
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="DIR", help="folders with runs, at any depth (default: runs)"
    )
    parser.add_argument("--uri", help="MLflow's address (default: MLFLOW_TRACKING_URI, or else sqlite:///mlflow.db)")
    parser.add_argument("--pull", metavar="URI", help="rebuild run directories from the MLflow at this address")
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), metavar="DIR", help="the folder that --pull writes to (default: runs)"
    )
    parser.add_argument(
        "--without-published", action="store_true", help="send no published rows (to experiments of their own)"
    )
    chosen = parser.parse_args(arguments)
    if not chosen.pull:
        return _send(chosen.folders or [Path("runs")], chosen.uri, with_rows=not chosen.without_published)
    if chosen.folders or chosen.uri:
        raise UserError("suite sync --pull URI takes only --out DIR; to send runs, run a second command without --pull")
    return _pull(chosen.pull, chosen.out)


def _send(folders: list[Path], uri: str | None, *, with_rows: bool) -> int:
    directories = [header.parent for folder in folders for header in sorted(folder.rglob("header.json"))]
    if not directories:
        where = ", ".join(map(str, folders))
        raise UserError(f"{where}: no run directories found; name the folder that contains them: suite sync DIR")
    sent, left_out = 0, 0
    experiments: set[str] = set()
    tasks: set[str] = set()
    with server.connect_client(uri) as client:
        for directory in directories:
            try:
                run_id, was_missing = mlflow.send_directory(client, directory)
            except UserError as error:
                print(f"left out {error}", file=sys.stderr)
                left_out += 1
                continue
            run = client.get_run(run_id)
            experiments.add(run.info.experiment_id)
            tasks.add(run.data.tags["task"])
            sent += was_missing
            print(f"{directory}: {'sent' if was_missing else 'already there'}", flush=True)
        killed = end_dead_sweeps(client, sorted(experiments))
        rows = sum(mlflow.publish_rows(client, task, published.find_rows(task)) for task in sorted(tasks) if with_rows)
    present = len(directories) - sent - left_out
    print(f"{sent} sent, {present} already there, {left_out} left out, {rows} published rows added")
    if killed:
        print(f"{killed} parents of sweeps whose process is gone are now KILLED")
    print(f"to see them: {how_to_open(uri)}")
    return 1 if left_out else 0


def _pull(uri: str, out: Path) -> int:
    counts: dict[str, int] = {"written": 0, "there": 0, "left out": 0, "rejected": 0}
    for directory, outcome in pull_runs(out, uri=uri):
        kind = outcome.partition(":")[0]
        counts[kind] += 1
        print(f"{directory}: {outcome}", file=sys.stderr if kind == "rejected" else sys.stdout)
    words = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"{sum(counts.values())} runs read: {words}".replace("there", "already there"))
    return 1 if counts["rejected"] else 0
