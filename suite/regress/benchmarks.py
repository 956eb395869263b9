"""Benchmarks: short runs of the suite, and what is read from their results."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from suite.contract import UserError
from suite.load import from_yaml

# Added to every run. One evaluation at the end, no checkpoints; nothing is sent anywhere or reused. Each step has its
# own time, so that a stop is in one of them.
SHORT = ("max_steps=40", "eval_every=40", "log_every=1", "stop_at_target=false")
ALWAYS = ("track=none", "save=none", "threads=1", "force=true")


Facts = Mapping[str, Any]  # contents of a result.json, which any version of the suite may have written


def _step(result: Facts, wall: float) -> float | None:
    return result["step_seconds"]["p50"]


def _processor(result: Facts, wall: float) -> float | None:
    seconds = result.get("processor_seconds")  # older results lack it
    return seconds["training"] / result["steps"] if seconds else None


def _compile(result: Facts, wall: float) -> float:
    return result["compile_seconds"]


def _evaluation(result: Facts, wall: float) -> float:
    return result["excluded_seconds"]["evaluation"]


def _start(result: Facts, wall: float) -> float | None:
    return None if result["wall_seconds"] is None else wall - result["wall_seconds"]


def _memory(result: Facts, wall: float) -> float | None:
    return result["peak_memory_bytes"]


@dataclass(frozen=True)
class Metric:
    """A number of a run.

    Attributes:
        read: (result, seconds of the whole process) to the number.
        by_step: whether the number is seconds of a step.
        environment: environment variables of the run.
    """

    read: Callable[[Facts, float], float | None]
    by_step: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


METRICS = {
    "step": Metric(_step, by_step=True),  # median seconds of a step
    "processor": Metric(_processor, by_step=True),  # processor seconds of a step; other programs hardly change them
    # seconds of compiling, in jax; the cache of compiled programs would hide them
    "compile": Metric(_compile, environment={"JAX_ENABLE_COMPILATION_CACHE": "false"}),
    "evaluation": Metric(_evaluation),  # seconds of the evaluation
    "start": Metric(_start),  # seconds outside of training, evaluation and compilation: imports, data, weights
    "memory": Metric(_memory),  # most bytes of the process
}


@dataclass(frozen=True)
class Benchmark:
    """One short run and the number that is compared.

    Attributes:
        name: in the table.
        run: overrides of the run.
        metric: key of `METRICS`.
    """

    name: str
    run: tuple[str, ...]
    metric: str = "step"

    @property
    def overrides(self) -> tuple[str, ...]:
        """Run's overrides, and those of every benchmark that it does not name itself."""
        named = {word.lstrip("+").partition("=")[0] for word in self.run}
        rest = (word for word in (*SHORT, *ALWAYS) if word.partition("=")[0] not in named)
        return (*self.run, *rest)

    def value(self, result: Facts, wall: float) -> float:
        """Return the compared number of a finished run.

        Args:
            result: of the run.
            wall: seconds of the whole process.

        Raises:
            UserError: if the result does not have the number, or it is not positive.
        """
        try:
            value = METRICS[self.metric].read(result, wall)
        except (KeyError, TypeError):  # a baseline's result has no such time
            value = None
        if value is None or not value > 0:
            raise UserError(f"benchmark {self.name}: its runs have no {self.metric}; choose another metric")
        return float(value)


def read_benchmarks(path: Path | None = None) -> list[Benchmark]:
    """Read the benchmarks of a YAML file; by default the suite's own.

    Raises:
        UserError: naming the entry that is wrong.
    """
    import yaml

    source = Path(str(resources.files("suite.regress"))) / "benchmarks.yaml" if path is None else path
    try:
        entries = from_yaml(source.read_text(encoding="utf-8"), bounded=True)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--benchmarks {source}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise UserError(f"--benchmarks {source}: not YAML: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise UserError(f"--benchmarks {source}: expected a list, such as - {{name: mine, run: +task=resnet50}}")
    places = (f"--benchmarks {source}, entry {number}" for number in range(1, len(entries) + 1))
    benchmarks = [_benchmark(entry, place) for entry, place in zip(entries, places, strict=True)]
    names = [benchmark.name for benchmark in benchmarks]
    for number, name in enumerate(names, start=1):
        if (first := names.index(name) + 1) != number:
            raise UserError(f"--benchmarks {source}, entry {number}: the name is {name}, as that of entry {first}")
    return benchmarks


def parse_benchmarks(runs: Sequence[str], metric: str) -> list[Benchmark]:
    """Benchmarks from overrides on the command line, each one string."""
    return [_benchmark({"name": run, "run": run, "metric": metric}, "--run") for run in runs]


def _benchmark(entry: Any, place: str) -> Benchmark:
    fields = {"name", "run", "metric"}
    if not isinstance(entry, dict) or not {"name", "run"} <= entry.keys() or entry.keys() - fields:
        raise UserError(f"{place}: expected name, run and perhaps metric")
    name, run, metric = str(entry["name"]), shlex.split(str(entry["run"])), str(entry.get("metric", "step"))
    if metric not in METRICS:
        raise UserError(f"{place}: metric {metric}: choose one of {', '.join(METRICS)}")
    if not any(word.lstrip("+").startswith("task=") or word.startswith("experiment=") for word in run):
        raise UserError(f"{place}: run: {' '.join(run)}: names no task; begin with +task=…")
    return Benchmark(name, tuple(run), metric)
