"""`suite sync`: bring MLflow up to date with run directories, or rebuild run directories from MLflow."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from suite import published
from suite.contract import UserError
from suite.track import mlflow, server
from suite.track.pull import pull


def main(arguments: Sequence[str]) -> int:
    """0 when everything is in place; 1 when a run was left out or refused (it is named)."""
    parser = argparse.ArgumentParser(prog="suite sync", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="where runs lie, at any depth (runs)")
    parser.add_argument("--uri", help="MLflow's address (MLFLOW_TRACKING_URI, or sqlite:///mlflow.db)")
    parser.add_argument("--pull", metavar="URI", help="rebuild run directories from the MLflow there instead")
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where --pull writes (runs)")
    chosen = parser.parse_args(arguments)
    if not chosen.pull:
        return _send(chosen.folders or [Path("runs")], chosen.uri)
    if chosen.folders or chosen.uri:
        raise UserError("suite sync --pull URI takes only --out DIR; sending and pulling are two commands")
    return _pull(chosen.pull, chosen.out)


def _send(folders: list[Path], uri: str | None) -> int:
    directories = [header.parent for folder in folders for header in sorted(folder.rglob("header.json"))]
    if not directories:
        where = ", ".join(map(str, folders))
        raise UserError(f"{where}: no run directory there; name the folder that holds them: suite sync DIR")
    sent, left_out, experiments = 0, 0, set()
    with server.connected(uri) as client:
        for directory in directories:
            try:
                run_id, missing = mlflow.replay(client, directory)
            except UserError as error:
                print(f"left out {error}", file=sys.stderr)
                left_out += 1
                continue
            run = client.get_run(run_id)
            experiments.add((run.info.experiment_id, run.data.tags["task"]))
            sent += missing
            print(f"{directory}: {'sent' if missing else 'already there'}", flush=True)
        rows = sum(mlflow.publish(client, id, published.rows_for(task)) for id, task in sorted(experiments))
    there = len(directories) - sent - left_out
    print(f"{sent} sent, {there} already there, {left_out} left out, {rows} published rows added")
    print(f"see them: {server.how_to_open(uri)}")
    return 1 if left_out else 0


def _pull(uri: str, out: Path) -> int:
    refused = 0
    for directory, outcome in pull(out, uri=uri):
        bad = outcome.startswith("refused")
        refused += bad
        print(f"{directory}: {outcome}", file=sys.stderr if bad else sys.stdout)
    return 1 if refused else 0
