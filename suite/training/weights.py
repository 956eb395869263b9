"""A run's weights as a safetensors file, written during or after training and read by `init_from=`.

Names and shapes are those of `Task.shapes()` in both backends, so that weights trained in torch can initialise a run in
jax.
"""

import collections
import copy
import itertools
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from suite import disk
from suite.contract import Saved, Spec, Target, Task, UserError
from suite.record import record
from suite.training.tensors import CHECKSUM, hash_tensors, open_tensors, write_tensors

NAME = "weights.safetensors"
Weights = Mapping[str, np.ndarray | Iterator[np.ndarray]]


def send_rows(weights: Weights) -> None:
    """Send this process's rows of tables to process 0, which writes them with `save_weights`."""
    for value in weights.values():
        if isinstance(value, Iterator):
            collections.deque(value, maxlen=0)


def save_weights(directory: Path, step: int, weights: Weights, about: Mapping[str, str]) -> Saved:
    """Write a run's weights. They replace earlier ones only when the new file is complete.

    Args:
        directory: the run's directory.
        step: updates made.
        weights: from `Engine.weights`.
        about: further entries of the file's metadata under `suite`.

    Returns:
        The event to log.

    Raises:
        WriteError: the file cannot be written; an earlier one is unchanged.
    """
    from safetensors import SafetensorError

    path, partial = directory / NAME, directory / f"{NAME}.partial"
    with disk.report_errors(path, SafetensorError):
        try:
            arrays = {n: _join_rows(v, directory) if isinstance(v, Iterator) else v for n, v in weights.items()}
            write_tensors(partial, arrays, {"suite": record.format_json({"step": step, **about})})
            partial.chmod(0o644)  # safetensors writes 0600, and weights are meant to be shared
            disk.sync_folder(partial)
            digest = disk.hash_file(partial)
            partial.replace(path)
            disk.sync_folder(directory)
        finally:
            partial.unlink(missing_ok=True)
    return Saved(step, NAME, digest)


def _join_rows(parts: Iterator[np.ndarray], directory: Path) -> np.ndarray:
    """Return a table from parts of its rows, mapped from a nameless file in the directory: memory holds one part."""
    with tempfile.TemporaryFile(dir=directory) as file:
        first = next(parts)
        for part in itertools.chain([first], parts):
            file.write(np.ascontiguousarray(part).data)
        file.flush()
        return np.memmap(file, first.dtype, "r").reshape(-1, *first.shape[1:])


def identify_weights(source: str) -> str:
    """Return the checksum of the file that `init_from=` names. Its arrays must be those that a run has written.

    Files of other programs and of older versions of the suite contain no checksum to compare with.

    Raises:
        UserError: the file is missing or damaged.
    """
    path = locate_weights(source)
    with _report_damage(source, path), open_tensors(path) as file:
        expected = (file.metadata() or {}).get(CHECKSUM)
        if expected and hash_tensors(file.keys(), file.get_tensor) != expected:
            raise ValueError("its checksum differs")
    return disk.hash_file(path)


@contextmanager
def _report_damage(source: str, path: Path) -> Generator[None]:
    """Turn errors of the code inside, which reads `path`, into `UserError`."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise UserError(f"init_from={source}: {path} is damaged, or no safetensors file ({error})") from error


def locate_weights(source: str) -> Path:
    """Return the weights file that `init_from=` names.

    Args:
        source: a file, or a run directory that contains one.

    Raises:
        UserError: there is no such file.
    """
    path = Path(source).expanduser()
    path = path / NAME if path.is_dir() else path
    if not path.is_file():
        raise UserError(
            f"init_from={source}: {path} does not exist; name a run directory that holds {NAME}, or a safetensors file"
        )
    return path


def initialize_from(task: Task, source: str) -> Task:
    """Return a copy of a task whose initial values are those of a file.

    Args:
        task: the task.
        source: as in `init_from=`.

    Raises:
        UserError: names or shapes differ from the task's, or the file is damaged.
    """
    path, expected = locate_weights(source), task.shapes()
    with _report_damage(source, path), open_tensors(path) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    _check(shapes, expected, source)

    def init(seed: int, name: str, rows: slice | None = None) -> np.ndarray:
        with open_tensors(path) as file:
            values = file.get_tensor(name) if rows is None else file.get_slice(name)[rows.start : rows.stop]
        return values.astype(np.float32) if values.dtype.kind == "f" else values

    changed = copy.copy(task)
    vars(changed)["init"] = init
    return changed


def _check(shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, Spec], source: str) -> None:
    """Compare a file's names and shapes with the task's.

    Raises:
        UserError: naming the first three differences.
    """
    faults = [f"{name} is missing" for name in expected if name not in shapes]
    faults += [f"{name} is not in this model" for name in shapes if name not in expected]
    faults += [
        f"{name} has shape {shapes[name]}, where {spec.shape} is expected"
        for name, spec in expected.items()
        if name in shapes and shapes[name] != tuple(spec.shape)
    ]
    if faults:
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        trained = _trained(source)
        raise UserError(
            f"init_from={source}: {'; '.join(faults[:3])}{more}; "
            + (f"these weights are of {trained}; " if trained else "")
            + "choose the task, the task.variant= and the sizes that they were trained with"
        )


def _trained(source: str) -> str:
    """Return the task and variant of a run directory as typed; "" if `source` is a file."""
    path = Path(source).expanduser() / "config.yaml"
    if not path.is_file():
        return ""
    with disk.report_damage(path):
        node = disk.read_yaml(path)["task"]
        return f"task={node['name']} task.variant={node['variant']}"


class Keeper:
    """Decides after which evaluations a run's weights are saved.

    Args:
        rule: `final`, `best` (by the last target's metric) or `none`, as in `save=`.
        target: the task's last target; None if it has no targets.
        best: the best value of that metric before a resumed run's checkpoint.

    Raises:
        UserError: the rule is `best` and there is no target.
    """

    def __init__(self, rule: str, target: Target | None, best: float | None = None):
        if rule == "best" and target is None:
            raise UserError("save=best: this task has no target to judge by; set save=final")
        self.rule, self.target, self.best = rule, target, best

    def wants(self, metrics: Mapping[str, float | None], *, final: bool) -> bool:
        """Return whether to save the weights after an evaluation.

        Args:
            metrics: of this evaluation.
            final: whether it is the run's last evaluation.
        """
        if self.rule != "best":
            return self.rule == "final" and final
        assert self.target is not None
        value = metrics[self.target.metric]
        if value is None or value != value:  # undefined
            return False
        higher = self.target.higher_is_better
        if self.best is None or (value > self.best if higher else value < self.best):
            self.best = value
            return True
        return False
