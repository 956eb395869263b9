"""Reads the registered designs: which rows a ladder has, with which seeds, and at how many seeds somebody looks.

`results/grid.yaml` lists the leaderboard's standard runs. A ladder with `looks` is registered: its authors committed it
before its runs, and `suite/statistics/registered.py` ranks its rows. A design with too few seeds raises an error.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from suite.contract import UserError
from suite.load import from_yaml
from suite.statistics.registered import plan_looks

Names = Annotated[tuple[str, ...], Field(min_length=1)]
COMM = "float32"  # of the runs of the grid


@dataclass(frozen=True)
class Design:
    """One ladder of the grid.

    Attributes:
        task: of the ladder.
        data: its `task.data`.
        optimizers: its rows.
        backends: in which every row runs with every seed.
        seeds: in the order in which they are run and counted.
        looks: numbers of seeds, from the first, at which the rows are compared.
        eval_every: steps between the evaluations of its runs.
    """

    task: str
    data: str
    optimizers: Names
    backends: Names
    seeds: tuple[int, ...]
    looks: tuple[int, ...]
    eval_every: int

    def __post_init__(self) -> None:
        """Refuse a design that cannot decide."""
        where = f"results/grid.yaml: {self.task} on {self.data}"
        try:
            plan_looks(len(self.optimizers), self.looks)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        if len(self.seeds) < self.looks[-1] or len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"{where}: the last look needs {self.looks[-1]} different seeds; add some to seeds")

    def covers(self, comm: str, world: int, eval_every: int) -> bool:
        """Return whether the design's runs have this communication mode, number of devices, and evaluations."""
        return (comm, world, eval_every) == (COMM, 1, self.eval_every)


def read_designs(text: str) -> list[Design]:
    """Read the ladders that have `looks`.

    Args:
        text: content of `results/grid.yaml`.

    Raises:
        UserError: for a design that is malformed, or that cannot decide.
    """
    grid = from_yaml(text)
    designs: list[Design] = []
    for entry in grid["optimizers"]:
        if "looks" in entry:
            shared = {"backends": grid["backends"], "seeds": entry.get("seeds", grid["seeds"])}
            chosen = {key: entry.get(key) for key in ("task", "data", "optimizers", "looks", "eval_every")}
            try:
                designs.append(TypeAdapter(Design).validate_python({**shared, **chosen}))
            except ValidationError as error:
                raise UserError(f"results/grid.yaml: {entry['task']}: {error.errors()[0]['msg']}") from error
    return designs


@cache
def list_designs() -> tuple[Design, ...]:
    """Return the designs of the suite's own grid."""
    return tuple(read_designs((resources.files("suite.results") / "grid.yaml").read_text(encoding="utf-8")))


def find_design(task: str, data: str, *, tuned: bool, scale: str) -> Design | None:
    """Return the design of a ladder; None if none is registered.

    Args:
        task: of the ladder.
        data: its `task.data`.
        tuned: whether its rows are tuned; those of the grid are.
        scale: of the runs; the grid's is laptop.
    """
    if not tuned or scale != "laptop":
        return None
    return next((design for design in list_designs() if (design.task, design.data) == (task, data)), None)
