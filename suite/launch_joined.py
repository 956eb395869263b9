"""A run whose processes somebody else has started, on one host or many: torchrun, a scheduler, or a person by hand.

This process is one of them. Which one, of how many, and where the first one listens stands in `launch.rank`,
`launch.processes` and `launch.address`, which conf/launch/torchrun.yaml and jax.yaml read from the environment, and
which `suite.launch_slurm` has from the job. Rank 0 decides whether the run is new, goes on or is finished already, and
tells the others.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from suite import checkpoint, load, lost, record, run
from suite import launch as local
from suite.contract import Task, UserError


def launch(
    config: dict[str, Any],
    command: Sequence[str],
    *,
    apart: bool = False,
    parent: str | None = None,
    tell: Callable[[Path], None] = lambda directory: None,
) -> NoReturn:
    """Join the other processes and run; ends this process with the run's exit code.

    Args:
        config: one run's configuration, the same for all processes.
        command: what was typed after `suite`.
        apart: whether the run should be a process of its own, as those of a sweep are, and here cannot be.
        parent: id of a sweep's MLflow run.
        tell: is told the run's directory, before the run.

    Raises:
        UserError: for what was not said or does not fit, before any other process is waited for.
    """
    rank, ranks = check(config, apart=apart)
    node = config["launch"]
    # as torchrun says it: how many ranks share a host
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(config["world"] // ranks * int(node["per_host"])))
    task = run.make_task(config)
    run.prepare_backend(config)
    backend = load.half("suite.backend.ranks", config["backend"])
    backend.connect(rank, ranks, node["address"], node["deadline"])
    told, hosts, why = {}, [], ""
    try:
        hosts = backend.hear(lost.address(node["address"]))
        told = backend.tell(_decide(config, list(command), tell) if rank == 0 else {})
        code = _run(config, task, told, rank)
    except UserError as error:
        print(f"suite: rank {rank}: {error}", file=sys.stderr)
        code = 2
    except Exception as error:  # thrown on, it would end in jax's clean-up, which waits for ranks that wait for this
        traceback.print_exc()
        code, why = 1, f"rank {rank}: {lost.reason(error, rank, hosts)}; "
    if code not in (1, 2):
        backend.disconnect()
    if rank == 0 and "header" in told:
        local.conclude(config, Path(told["directory"]), code, parent, why)
    elif code == 1 and "header" in told:
        local.failed(Path(told["directory"]), why)  # rank 0 may be the one that was lost
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as suite.worker does, and for the reason given there


def check(config: Mapping[str, Any], *, apart: bool = False) -> tuple[int, int]:
    """This process's rank, and how many processes there are.

    Raises:
        UserError: where that was not said, or does not fit the rest of the configuration.
    """
    node, world = config["launch"], config["world"]
    name = node["name"]
    load.framework(config["backend"])
    if apart:
        raise UserError(
            f"launch={name}: one run at a time; a sweep or repeat= starts processes by itself, launch=local"
        )
    if config["backend"] not in node["backends"]:
        raise UserError(f"launch={name}: not for backend={config['backend']}; type launch=jax")
    for key in ("rank", "processes", "address"):
        if node[key] is None:
            raise UserError(f"launch.{key}: not known; {node['hint']}")
    rank, ranks = int(node["rank"]), int(node["processes"])
    if not 0 <= rank < ranks:
        raise UserError(f"launch.rank={rank}: of launch.processes={ranks}, ranks are 0 to {ranks - 1}")
    if world % ranks or (config["backend"] == "torch" and world != ranks):
        fits = "in torch each is one device" if config["backend"] == "torch" else "each has as many devices"
        raise UserError(f"world={world}: {ranks} processes were started, and {fits}; type world={ranks}")
    return rank, ranks


def _decide(config: dict[str, Any], command: list[str], tell: Callable[[Path], None]) -> dict[str, Any]:
    """What rank 0 tells the others; it holds the directory's lock as long as it lives."""
    try:
        header, directory = local.find(config, command, tell)
        told = {"hash": record.config_hash(config), "directory": str(directory.path.resolve())}
        if directory.state == "finished":
            return told | {"code": local.show(config, directory.path)}
        _, header = local.claim(config, header, directory)
        return told | {"header": header, "step": checkpoint.step(directory.path)}
    except UserError as error:
        return {"error": str(error)}


def _run(config: dict[str, Any], task: Task, told: Mapping[str, Any], rank: int) -> int:
    """Run as rank 0 has decided.

    Raises:
        UserError: where it could not, or where this host sees another configuration or another directory.
    """
    if "error" in told:
        raise UserError(told["error"])
    if told["hash"] != record.config_hash(config):
        raise UserError("this process was given another configuration than rank 0")
    if "code" in told:
        return told["code"]
    directory = Path(told["directory"])
    if checkpoint.step(directory) != told["step"]:
        raise UserError(
            f"{directory}: rank 0 has a checkpoint here which this host does not see; choose a run_dir= on a file "
            "system that all hosts share"
        )
    with lost.watched(rank, directory):
        return run.execute(config, task, directory, dict(told["header"]), rank=rank)


def main() -> int:
    """Be what standard input says: {"config", "command", "parent"} as JSON; returns the exit code of bad usage."""
    told = json.load(sys.stdin)
    try:
        launch(told["config"], told["command"], parent=told["parent"])
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
