"""Task × optimizer × communication × backend × devices, by pairs: a small set of runs in which every two choices meet.

python pairs.py [TABLE]: run the whole covering set, three steps a cell, and add each cell to a table as it is done;
what stands there is not run again.
"""

import csv
import itertools
import math
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suite.settings.run import Run

AXES = ("task", "optimizer", "comm", "backend", "world")
STEPS = 3
SEED = 0
Cell = tuple[str, str, str, str, str]


def covering() -> list[Cell]:
    """Cells until every pair of choices has occurred, each one chosen for the most new pairs among 60 random ones.

    A preset of comm that sets an optimizer's options too fits no other optimizer, and stays out.
    """
    from conftest import OUTSIDE
    from small import TASKS

    from suite import load

    choices = [
        sorted(TASKS),
        sorted(load.find_members("optimizers")),
        sorted(path.stem for path in load.find_files("comm", OUTSIDE / "conf") if "_global_" not in path.read_text()),
        list(load.BACKENDS),
        ["1", "2"],
    ]
    draws = random.Random(SEED)
    missing = {pair for axes in itertools.combinations(range(len(AXES)), 2) for pair in _pairs(choices, axes)}
    cells: list[Cell] = []
    while missing:
        axes, values = min(missing)  # one that is still missing is always met, so that this ends
        candidates = [[draws.choice(axis) for axis in choices] for _ in range(60)]
        for candidate in candidates:
            for axis, value in zip(axes, values, strict=True):
                candidate[axis] = value
        best = max(candidates, key=lambda cell: len(missing & _met(cell)))
        missing -= _met(best)
        cells.append((best[0], best[1], best[2], best[3], best[4]))
    return cells


def _pairs(choices: list[list[str]], axes: tuple[int, int]) -> Iterable[Any]:
    return ((axes, values) for values in itertools.product(*(choices[axis] for axis in axes)))


def _met(cell: Any) -> set[Any]:
    return {(axes, tuple(cell[axis] for axis in axes)) for axes in itertools.combinations(range(len(AXES)), 2)}


def config(cell: Cell) -> "Run":
    """Return the run of one cell."""
    from conftest import OUTSIDE
    from small import small

    task, optimizer, comm, backend, world = cell
    chosen = [f"optimizer={optimizer}", f"comm={comm}", f"backend={backend}", f"world={world}", "threads=1"]
    return small(task, None, *chosen, directory=OUTSIDE / "conf", device="cpu")


def frozen(task: str) -> list[float]:
    """Return the losses of the same batches at the initial weights, in torch."""
    import engines

    from suite.launch.job import make_task

    still = {"optimizer.lr": 0.0, "schedule": {"shape": "constant", "warmup": 0}}
    settings = engines.change(config((task, "sgd", "float32", "torch", "1")), still)
    return engines.advance(engines.engine(settings, make_task(settings)), range(STEPS), lr=0.0)


def losses(cells: list[Cell]) -> dict[Cell, list[float]]:
    """Three losses of each cell; those of two torch processes are run together."""
    import engines
    import ranks

    from suite.launch.job import make_task

    found, apart = {}, {}
    for cell in cells:
        if cell[3:] == ("torch", "2"):
            apart["-".join(cell)] = [None, STEPS, config(cell)]
            continue
        made = engines.engine(config(cell), make_task(config(cell)))
        found[cell] = engines.advance(made, range(STEPS))
    if apart:
        ended = ranks.start("torch", 2, apart)
        for cell in cells:
            if "-".join(cell) in ended:
                found[cell] = ended["-".join(cell)]["losses"].tolist()
    return found


def main(table: Path) -> None:
    """Run what is missing in the table."""
    from suite.contract import UserError

    done = {tuple(row[axis] for axis in AXES) for row in csv.DictReader(table.open())} if table.exists() else set()
    fresh = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow([*AXES, *(f"loss{step}" for step in range(1, STEPS + 1)), "finite"])
        for cell in covering():
            if cell in done:
                continue
            try:
                seen = losses([cell])[cell]
            except UserError as error:  # what does not fit together, with the reason
                seen = []
                print(*cell, error, flush=True)
            finite = all(map(math.isfinite, seen)) if seen else "refused"
            writer.writerow([*cell, *(f"{loss:.6g}" for loss in seen or [math.nan] * STEPS), finite])
            file.flush()
            print(*cell, *(f"{loss:.4g}" for loss in seen), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import conftest  # noqa: F401  (environment)

    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results/matrix.csv"))
