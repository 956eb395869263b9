"""Settings of the ways to start a run's processes: the group `launch`. None of them changes a number."""

from typing import Any, Literal

from pydantic import PositiveInt

from suite.declared import NOTHING, Declared, setting


class LaunchSettings(Declared):
    """Settings that every way to start processes has."""

    deadline: float = setting(
        ..., "most seconds for a rank's start, and in torch for a collective", at_least=0, affects=NOTHING
    )


class LocalLaunch(LaunchSettings):
    """Processes on this machine."""

    module: Literal["suite.launch.local"] = setting(..., "the launcher", affects=NOTHING, before="suite.launch.local")
    processes: PositiveInt | Literal["auto"] = setting(
        ..., "auto: in torch one for each device, in jax one for all", affects=NOTHING
    )


class ExternalLaunch(LaunchSettings):
    """This process is one of several that torchrun, a scheduler or a person has started."""

    module: Literal["suite.launch.external"] = setting(..., "the launcher", affects=NOTHING)
    name: str = setting(..., "name of the preset", affects=NOTHING)
    hint: str = setting(..., "how to start the processes", affects=NOTHING)
    backends: tuple[str, ...] = setting(..., "frameworks that can be started so", affects=NOTHING)
    rank: int | str | None = setting(..., "rank of this process", affects=NOTHING)
    processes: int | str | None = setting(..., "number of processes", affects=NOTHING)
    per_host: int | str = setting(..., "processes of one host", affects=NOTHING)
    address: str | None = setting(..., "address at which rank 0 listens, HOST:PORT", affects=NOTHING)
    cpus: PositiveInt | None = setting(None, "cores of each process, where a scheduler gives them", affects=NOTHING)


class SlurmLaunch(LaunchSettings):
    """A Slurm job whose tasks are the ranks."""

    module: Literal["suite.launch.slurm"] = setting(..., "the launcher", affects=NOTHING)
    name: str = setting(..., "name of the preset", affects=NOTHING)
    backends: tuple[str, ...] = setting(..., "frameworks that can be started so", affects=NOTHING)
    nodes: PositiveInt = setting(..., "nodes of the job", affects=NOTHING)
    per_host: PositiveInt | None = setting(..., "tasks of one node", affects=NOTHING)
    cpus: PositiveInt | None = setting(..., "cores of one task", affects=NOTHING)
    minutes: PositiveInt = setting(..., "minutes after which the job is requeued", affects=NOTHING)
    restarts: int = setting(..., "most times that the job is requeued", at_least=0, affects=NOTHING)
    partition: str | None = setting(..., "Slurm's partition", affects=NOTHING)
    account: str | None = setting(..., "Slurm's account", affects=NOTHING)
    gres: str | None = setting(..., "resources of one node", affects=NOTHING)
    setup: tuple[str, ...] = setting(..., "shell lines before the ranks start", affects=NOTHING)
    extra: dict[str, Any] = setting(..., "other options of sbatch", affects=NOTHING)
    wait: bool = setting(..., "wait for the end of the job", affects=NOTHING)
    cluster: Literal["slurm", "local"] = setting(..., "local: run the job on this machine", affects=NOTHING)
    processes: PositiveInt | Literal["auto"] = setting(..., "auto: as many as the job has", affects=NOTHING)
