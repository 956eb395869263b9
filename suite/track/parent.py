"""The MLflow run below which a sweep's runs are shown. It is RUNNING until the sweep ends.

The same sweep again continues the same parent. A parent whose process was killed remains RUNNING until then, or until
`suite sync` finds on the same machine that the process is gone.
"""

import hashlib
import json
import os
import shlex
import socket
from collections.abc import Sequence

from suite.settings.run import AnyRun
from suite.track import server
from suite.track.server import MOST_TAG, Client, Run
from suite.track.view import View, experiment_name, task_of

PARENT = "mlflow.parentRunId"
SWEEP = "sweep"  # tag of a parent: a digest of the sweep's commands
COMMON = "sweep.common"  # the overrides that all its runs share, one a line
PROCESS = "sweep.process"  # the process that makes the runs: host, id and start
SHOWN = ("optimizer", "baseline", "comm", "backend", "seed")  # settings that the name of a run states already
MOST_NAME = 250  # characters of a run's name (mlflow.store.tracking.dbmodels.models)


def start_sweep(commands: Sequence[Sequence[str]], *, like: AnyRun, uri: str | None = None) -> str:
    """Create a sweep's parent, or continue that of an earlier start of the same sweep; return its id.

    Args:
        commands: the overrides of each run.
        like: one of the runs.
        uri: of the tracking server.
    """
    common = [word for word in commands[0] if all(word in command for command in commands)]
    changing = dict.fromkeys(_key(word) for command in commands for word in command if word not in common)
    digest = hashlib.sha256(json.dumps([list(command) for command in commands]).encode()).hexdigest()
    process = _describe_process(os.getpid())
    assert process  # this one is alive
    tags = {"published": "false", SWEEP: digest[:16], COMMON: "\n".join(common)[:MOST_TAG], PROCESS: process}
    with server.connect_client(uri) as client:
        experiment = server.find_experiment(client, experiment_name(like, task_of(like).data.name))
        for run in server.search_runs(client, [experiment], f"tags.{SWEEP} = '{digest[:16]}'"):
            if not _is_alive(run):
                client.update_run(run.info.run_id, status="RUNNING")
                client.set_tag(run.info.run_id, PROCESS, process)
                return run.info.run_id
        name = f"sweep of {', '.join(changing) or 'one command'}"[:MOST_NAME]
        return client.create_run(experiment, run_name=name, tags=tags).info.run_id


def end_sweep(parent: str, codes: Sequence[int], *, whole: bool, uri: str | None = None) -> None:
    """Set the state of a sweep's parent.

    Args:
        parent: its id.
        codes: the exit codes of the sweep's runs.
        whole: whether the sweep came to its end; otherwise the parent is KILLED.
        uri: of the tracking server.
    """
    status = "KILLED" if not whole else "FAILED" if {1, 2} & set(codes) else "FINISHED"
    with server.connect_client(uri) as client:
        client.set_terminated(parent, status)


def end_dead_sweeps(client: Client, experiments: Sequence[str]) -> int:
    """Set the parents in these experiments whose processes on this machine are gone to KILLED; return their number."""
    running = server.search_runs(
        client, list(experiments), "attributes.status = 'RUNNING' and tags.published = 'false'"
    )
    dead = [run for run in running if _is_dead(run)]
    for run in dead:
        client.set_terminated(run.info.run_id, "KILLED")
    return len(dead)


def name_run(client: Client, view: View, parent: str | None) -> str:
    """Return the name of a run: what it is, and below a sweep's parent also the settings in which its runs differ."""
    from mlflow.exceptions import MlflowException

    if parent is None:
        return view.name
    try:
        tags = client.get_run(parent).data.tags
    except MlflowException:  # the parent was deleted for good
        return view.name
    if COMMON not in tags:  # made by an older version
        return view.name
    common = tags[COMMON].splitlines()
    own = [word for word in shlex.split(view.result.command)[1:] if word not in common and _key(word) not in SHOWN]
    return "·".join([view.name, *own])[:MOST_NAME]


def _key(word: str) -> str:
    return word.lstrip("+").partition("=")[0]


def _describe_process(number: int) -> str | None:
    """Return host, id and start of a process of this machine; None if it is gone."""
    import psutil

    try:
        return f"{socket.gethostname()} {number} {psutil.Process(number).create_time():.0f}"
    except psutil.NoSuchProcess:
        return None


def _is_alive(run: Run) -> bool:
    """Return whether a parent's process is on this machine, and makes runs."""
    return run.info.status == "RUNNING" and PROCESS in run.data.tags and not _is_dead(run)


def _is_dead(run: Run) -> bool:
    """Return whether a parent's process was on this machine and is gone."""
    host, number, _ = run.data.tags.get(PROCESS, "? 0 0").rsplit(" ", 2)
    return host == socket.gethostname() and _describe_process(int(number)) != run.data.tags[PROCESS]
