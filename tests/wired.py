"""One rank that takes the mean of 10 MB in several communication modes, and says what its ledger and the kernel saw.

python wired.py BACKEND JOB; JOB is JSON: {"values": n, "modes": {name: settings of comm}, "locals": devices of a jax
process, "rounds": measured after a first one that is not, "compiles": whether torch compiles codecs}. Who it
is stands in the environment, as torchrun and jax have it.
Prints one line of JSON: {name: {"hashes", "between": bytes for other hosts by the ledger, "kernel": bytes its host
sent, "seconds": of each round}}. `start` runs it on a test bed's hosts.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from suite.comm.settings import CommSettings

sys.path.insert(0, str(Path(__file__).parent))
QUIET = 0.05  # seconds before and after, in which nothing else is sent
# what the kernel may have sent beside the ledger's bytes, headers: one a segment, and where a shaped link cuts segments
# down, one a packet
UNSHAPED, SHAPED, CONSTANT = 1.003, 1.07, 20_000
PORTS = iter(range(29_500, 30_500))


def start(
    bed: Any,
    backend: str,
    modes: Mapping[str, "CommSettings"],
    *,
    local: int = 1,
    values: int = 2_500_000,
    rounds: int = 2,
    compiles: bool = False,
    deadline: float = 240,
) -> dict[str, Any]:
    """Every mode's {"ledger": bytes between hosts that each host's ranks count, "kernel": bytes, "seconds", "hashes"}.

    Seconds are those of each round, until the last rank had the mean.

    Of `local` ranks on a host torch makes processes, jax devices of one process.
    """
    processes = local if backend == "torch" else 1
    world = bed.hosts * processes
    nodes = {name: mode.plain() for name, mode in modes.items()}
    job = {"values": values, "modes": nodes, "locals": local, "rounds": rounds, "compiles": compiles}
    command = [sys.executable, str(Path(__file__)), backend, json.dumps(job)]
    from testbed import rendezvous

    port = next(PORTS)
    printed = bed.run(
        [(rank // processes, command) for rank in range(world)],
        deadline=deadline,
        each=[rendezvous(rank, world, bed.hosts, bed.addresses[0], port) for rank in range(world)],
        environment={name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
    )
    ranks = [json.loads(text.splitlines()[-1]) for text in printed]
    found = {}
    for name in modes:
        hosts = [ranks[first : first + processes] for first in range(0, world, processes)]
        found[name] = {
            "ledger": [sum(rank[name]["between"] for rank in host) for host in hosts],
            "kernel": [host[0][name]["kernel"] for host in hosts],
            "seconds": [max(each) for each in zip(*(rank[name]["seconds"] for rank in ranks), strict=True)],
            "hashes": {value for rank in ranks for value in rank[name]["hashes"]},
        }
    return found


class Task:
    """One layer's weight, for `suite.comm.setup`."""

    def __init__(self, values: int):
        from suite.contract import Layer, Spec

        self.shapes = lambda: {"fc.weight": Spec((values,), "zeros")}
        self.layers = lambda: {"fc": Layer("linear", ("fc.weight",))}


def measured(rounds: int, once: Callable[[], Any], meet: Callable[[], Any]) -> dict[str, Any]:
    """Kernel bytes of one round, the least of some, and the seconds of each; counted while nothing else is sent."""
    from testbed import count_sent

    once()
    seconds, kernel = [], []
    for _ in range(rounds):
        meet()
        time.sleep(QUIET)
        before, began = count_sent(), time.perf_counter()
        once()
        seconds.append(time.perf_counter() - began)
        time.sleep(2 * QUIET)  # acknowledgements, and another rank of this host that is not done yet
        kernel.append(count_sent() - before)
    return {"seconds": seconds, "kernel": min(kernel)}


def values(rank: int, count: int) -> np.ndarray:
    """Return the values that one rank holds."""
    return (1e-3 * np.random.default_rng(rank).normal(size=count)).astype(np.float32)


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def in_torch(job: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from suite.comm import setup
    from suite.comm.reduce.torch import Reduce
    from suite.comm.settings import CommSettings
    from suite.comm.transport import Ledger
    from suite.comm.transport.torch import Transport

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world, found = dist.get_world_size(), {}
    mine = torch.from_numpy(values(dist.get_rank(), job["values"]))
    for name, node in job["modes"].items():
        task: Any = Task(job["values"])
        channels = setup.make_channels(CommSettings.given(node), task, world, "torch", compiles=job["compiles"])
        ledger = Ledger()
        reduce = Reduce(Transport(ledger, channels.locals), channels)
        mean: Any = {}

        def once(reduce: Any = reduce, mean: Any = mean) -> None:
            mean.update(reduce.mean("gradients", {"fc.weight": mine}, gradients=True))

        result = measured(job["rounds"], once, dist.barrier)
        levels = {level: count // (1 + job["rounds"]) for level, count in ledger.levels.items()}
        hashes = [digest(mean["fc.weight"].numpy())]
        found[name] = result | {"between": levels.get("flat", 0) + levels.get("outer", 0), "hashes": hashes}
    return found


def in_jax(job: dict[str, Any]) -> dict[str, Any]:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={job['locals']}"
    os.environ["NPROC"] = str(4 * job["locals"])
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from suite.comm import setup
    from suite.comm.reduce.jax import Reduce
    from suite.comm.settings import CommSettings
    from suite.comm.transport.jax import AXIS, Transport
    from suite.engine.ranks import jax as ranks

    variables = [os.environ[name] for name in ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS")]
    ranks.connect(int(variables[0]), int(variables[1]), variables[2], 60)
    world, count, found = len(jax.devices()), job["values"], {}
    for name, node in job["modes"].items():
        comm = CommSettings.given(node)
        channels = setup.make_channels(comm, Task(count), world, "jax")  # type: ignore[arg-type]
        mesh = Mesh(np.array(jax.devices()).reshape(-1, channels.locals or world), AXIS)
        split, entries = NamedSharding(mesh, P(AXIS)), []
        given = jax.make_array_from_callback(
            (world * count,), split, lambda index: values(index[0].start // count, count)
        )

        def body(value: Any, channels: Any = channels, entries: Any = entries) -> Any:
            transport = Transport(world, channels.locals)
            reduce = Reduce(transport, channels, state={}, key=np.zeros(2, np.uint32))
            mean = reduce.mean("gradients", {"fc.weight": value}, gradients=True)["fc.weight"]
            entries[:] = transport.entries
            return mean

        maps = {"mesh": mesh, "in_specs": P(AXIS), "out_specs": P(AXIS), "check_vma": False}
        run = jax.jit(jax.shard_map(body, **maps))
        meet = jax.jit(jax.shard_map(lambda value: jax.lax.psum(value[:1], AXIS), **maps))
        result = measured(
            job["rounds"],
            lambda run=run, given=given: run(given).block_until_ready(),
            lambda meet=meet, given=given: meet(given).block_until_ready(),
        )
        hashes = [digest(np.asarray(shard.data)) for shard in run(given).addressable_shards]
        # a trace counts what one device sends: all of a host's do, but for leaders'
        leaders = comm.topology.module.endswith("leader")
        each = sum(entry.sent for entry in entries if entry.level != "inner")
        found[name] = result | {"between": each * (1 if leaders else job["locals"]), "hashes": hashes}
    return found


if __name__ == "__main__":
    print(json.dumps({"torch": in_torch, "jax": in_jax}[sys.argv[1]](json.loads(sys.argv[2]))), flush=True)
    os._exit(0)  # gloo's threads abort in the interpreter's own clean-up now and then
