"""`suite sync`: send run directories to MLflow, or rebuild run directories from MLflow."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from suite import published
from suite.contract import UserError
from suite.track import mlflow, server
from suite.track.address import how_to_open
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
    chosen = parser.parse_args(arguments)
    if not chosen.pull:
        return _send(chosen.folders or [Path("runs")], chosen.uri)
    if chosen.folders or chosen.uri:
        raise UserError("suite sync --pull URI takes only --out DIR; to send runs, run a second command without --pull")
    return _pull(chosen.pull, chosen.out)


def _send(folders: list[Path], uri: str | None) -> int:
    directories = [header.parent for folder in folders for header in sorted(folder.rglob("header.json"))]
    if not directories:
        where = ", ".join(map(str, folders))
        raise UserError(f"{where}: no run directories found; name the folder that contains them: suite sync DIR")
    sent, left_out, experiments = 0, 0, set()
    with server.connect_client(uri) as client:
        for directory in directories:
            try:
                run_id, was_missing = mlflow.send_directory(client, directory)
            except UserError as error:
                print(f"left out {error}", file=sys.stderr)
                left_out += 1
                continue
            run = client.get_run(run_id)
            experiments.add((run.info.experiment_id, run.data.tags["task"]))
            sent += was_missing
            print(f"{directory}: {'sent' if was_missing else 'already there'}", flush=True)
        rows = sum(mlflow.publish_rows(client, id, published.find_rows(task)) for id, task in sorted(experiments))
    present = len(directories) - sent - left_out
    print(f"{sent} sent, {present} already there, {left_out} left out, {rows} published rows added")
    print(f"to see them: {how_to_open(uri)}")
    return 1 if left_out else 0


def _pull(uri: str, out: Path) -> int:
    rejected = 0
    for directory, outcome in pull_runs(out, uri=uri):
        is_rejected = outcome.startswith("rejected")
        rejected += is_rejected
        print(f"{directory}: {outcome}", file=sys.stderr if is_rejected else sys.stdout)
    return 1 if rejected else 0
