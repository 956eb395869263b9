"""One rank that trains in several configurations, which take turns, and says what a step of each took and sent.

python trained.py BACKEND JOB; JOB is JSON: {"cases": {name: [words as typed after `suite`]}, "steps": in a round,
"rounds": measured after a first one that is not, "locals": devices of a jax process}. Who it is stands in the
environment, as torchrun and jax have it. A case called `ddp` is torch's DistributedDataParallel with its own SGD, and
one whose name begins with `alone` sends nothing, in torch. Prints one line of JSON: {name: {"seconds" of a step, of
each round; "exchange" of all gradients by themselves; "code", to encode and decode them; "bytes" that the ledger counts
in a step, by name and level; "kernel", what the host sent in a step}}. `start` runs it on a test bed's hosts.
"""

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
PORTS = itertools.count(31_000)


def start(
    bed: Any,
    backend: str,
    cases: Mapping[str, list[str]],
    *,
    local: int = 1,
    steps: int = 4,
    rounds: int = 5,
    deadline: float = 580,
) -> dict[str, Any]:
    """Each case's "seconds" a step and "exchange", of each round, until the last rank was done; and rank 0's bytes."""
    from testbed import rendezvous

    processes, port = local if backend == "torch" else 1, next(PORTS)
    world = bed.hosts * processes
    job = {"cases": dict(cases), "steps": steps, "rounds": rounds, "locals": local}
    command = [sys.executable, str(Path(__file__)), backend, json.dumps(job)]
    printed = bed.run(
        [(rank // processes, command) for rank in range(world)],
        deadline=deadline,
        each=[rendezvous(rank, world, bed.hosts, bed.addresses[0], port) for rank in range(world)],
        environment={name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
    )
    return json.loads(printed[0].splitlines()[-1])


def median(values: list[float]) -> str:
    """Milliseconds, with the range."""
    return f"{1000 * statistics.median(values):.1f} ({1000 * min(values):.1f}-{1000 * max(values):.1f}) ms"


class Case:
    """An engine with batches of its own."""

    def __init__(self, words: list[str], backend: str, rank: int, world: int, *, alone: bool = False):
        from engines import engine

        from suite.launch.job import make_task
        from suite.settings import configure

        self.config = configure.resolve([*words, f"backend={backend}", f"world={world}", "threads=1"])
        self.task = make_task(self.config)
        self.engine, self.number = engine(self.config, self.task), 0
        share = self.engine.share
        self.batches = [self.task.batch("train", 0, step, *share) for step in range(8)]
        self.engine.warm(self.batches[0], range(len(self.batches)), {})
        if alone:
            self.engine.reduce.transport.world = 1

    def step(self) -> None:
        self.engine.step(self.number, self.batches[self.number % len(self.batches)], {})
        self.number += 1

    def settle(self) -> None:
        self.engine.synchronize()

    def exchange(self) -> None:
        for kind in dict.fromkeys(self.engine.kinds.values()):
            self.engine.exchange(kind)

    def code(self) -> None:
        for kind in dict.fromkeys(self.engine.kinds.values()):
            self.engine.code(kind)

    def inside(self) -> None:
        """Move gradients as two levels do inside a host, in torch: to their owners there, and sums back to all."""
        if self.config.comm.topology.module.endswith("two_level") and self.config.backend == "torch":
            import torch

            from suite.comm.encoder.torch import Encoder
            from suite.comm.exchange import gather_rows, scatter_rows

            reduce, count = self.engine.reduce, sum(value.numel() for value in self.engine.named.values())
            inner, encoder = reduce.transport.inner, Encoder("inside", reduce.channels.default.inner, None, (0, 0), 0)
            rows = torch.zeros(inner.world, -(-count // inner.world))
            gather_rows("inside", scatter_rows("inside", rows, encoder, inner), encoder, inner)


class Parallel(Case):
    """A case with the same network in torch's own DistributedDataParallel, at its defaults, with torch's own SGD."""

    def __init__(self, words: list[str], backend: str, rank: int, world: int):
        import torch

        super().__init__(words, backend, rank, world)
        model, node = self.engine.model, self.config.optimizer
        self.model = torch.nn.parallel.DistributedDataParallel(model)
        options = {name: getattr(node, name) for name in ("lr", "momentum", "weight_decay")}
        self.optimizer = torch.optim.SGD(model.parameters(), foreach=True, **options)

    def step(self) -> None:
        [part] = self.engine._micro(self.batches[self.number % len(self.batches)])
        self.optimizer.zero_grad()
        outputs, _ = self.model(part, {}, (0, self.number))
        loss, weight = self.engine.model.loss(outputs, part)
        (loss / weight).backward()
        self.optimizer.step()
        self.number += 1


def measured(cases: Mapping[str, Case], job: Mapping[str, Any], slowest: Callable[[float], float]) -> dict[str, Any]:
    """Rounds in which the cases take turns."""
    from testbed import count_sent

    found: dict[str, Any] = {
        name: {"seconds": [], "exchange": [], "code": [], "inside": [], "kernel": []} for name in cases
    }
    for number in range(1 + job["rounds"]):
        for name, case in cases.items():
            if number == 1:
                found[name]["before"] = case.engine.facts()["bytes"]
            case.settle()
            slowest(0.0)  # nobody begins before all are here
            before, began = count_sent(), time.perf_counter()
            for _ in range(job["steps"]):
                case.step()
            case.settle()
            seconds = slowest((time.perf_counter() - began) / job["steps"])
            if number:
                found[name]["seconds"].append(seconds)
                found[name]["kernel"].append((count_sent() - before) / job["steps"])
    for name, case in cases.items():
        before, after = found[name].pop("before"), case.engine.facts()["bytes"]
        count = job["rounds"] * job["steps"]
        found[name]["bytes"] = {
            kind: {key: (value - before[kind].get(key, 0)) / count for key, value in after[kind].items()}
            for kind in ("by_name", "by_level")
        }
        found[name]["kernel"] = min(found[name]["kernel"])
    for number, (name, case) in itertools.product(range(1 + job["rounds"]), cases.items()):
        for what, call in (("exchange", case.exchange), ("code", case.code), ("inside", case.inside)):
            slowest(0.0)
            began = time.perf_counter()
            call()
            seconds = slowest(time.perf_counter() - began)
            if number:
                found[name][what].append(seconds)
    return found


def in_torch(job: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from suite.engine.ranks.torch import Ranks

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world, cases = dist.get_rank(), dist.get_world_size(), {}
    for name, words in job["cases"].items():
        if name == "ddp":
            cases[name] = Parallel(words, "torch", rank, world)
        else:
            cases[name] = Case(words, "torch", rank, world, alone=name.startswith("alone"))
    return measured(cases, job, Ranks(world, torch.device("cpu")).slowest)


def in_jax(job: dict[str, Any]) -> dict[str, Any]:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={job['locals']}"
    os.environ["NPROC"] = str(4 * job["locals"])
    import jax

    from suite.engine.ranks import jax as ranks

    variables = [os.environ[name] for name in ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS")]
    ranks.connect(int(variables[0]), int(variables[1]), variables[2], 120)
    world = len(jax.devices())
    cases = {name: Case(words, "jax", jax.process_index(), world) for name, words in job["cases"].items()}
    return measured(cases, job, ranks.Ranks().slowest)


if __name__ == "__main__":
    print(json.dumps({"torch": in_torch, "jax": in_jax}[sys.argv[1]](json.loads(sys.argv[2]))), flush=True)
    os._exit(0)  # gloo's threads abort in the interpreter's own clean-up now and then
