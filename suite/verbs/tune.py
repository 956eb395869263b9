"""`suite tune`: try a fixed list of hyper-parameters, and write the best ones into a recipe with the evidence."""

import argparse
import importlib
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from suite import disk
from suite.contract import UserError
from suite.settings import configure
from suite.settings.overrides import TUNED, add_directory, clean_overrides, render_command
from suite.settings.run import Run
from suite.tuning import recipe
from suite.tuning.points import PREFIX, find_ranges, propose_points
from suite.tuning.session import Interrupted, Session
from suite.tuning.trials import list_rungs, make_table, measure_shortfall

SEARCH = f"{PREFIX}search"
COUNTS = {"trials": 16, "seeds": 3, "runs": 12}
HELP = """Search hyper-parameters, and write the best ones into a recipe, which later runs use automatically. The first
trial has the optimizer's own values; the others follow a quasi-random list in the ranges of the optimizer's YAML file,
search: {lr: [low, high, log]}. A value on the command line is not searched, and is recorded. Every trial runs for a
quarter of max_steps, the best quarter of them runs whole, and the best two of these run with three seeds. The better
one has more seeds that reach the last target, then the smaller mean of the steps to it, where a miss counts as twice
max_steps. If a value of the best trial is the lowest or highest one tried, trials beyond it follow. All of this takes
at most as many steps as runs= whole runs. If the best value is still the outermost one then, the recipe and the
leaderboard say that the search has not converged. Trials do not start from an earlier recipe, and finished trials do
not run again. The recipe's values for other data are kept. If the best trial reaches no target, no recipe is written,
except with --misses. Exit codes: 0 written, 1 no target reached, 2 bad usage, 129, 130 and 143 interrupted (the
same command continues)."""


def main(arguments: Sequence[str]) -> int:
    """Run the trials and write the recipe."""
    parser = argparse.ArgumentParser(prog="suite tune", description=HELP)
    parser.add_argument(
        "overrides",
        nargs="+",
        metavar="key=value",
        help="as for a run; also trials=N (default: 16), seeds=N (default: 3) and runs=N (default: 12)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the recipe to write (default: conf/recipe/<task>-<optimizer>-<scale>.yaml)",
    )
    parser.add_argument("--misses", action="store_true", help="write a recipe even if no trial reached a target")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="your own configuration groups")
    chosen = parser.parse_intermixed_args(arguments)
    directory = chosen.config_dir
    overrides, counts = _split(clean_overrides(chosen.overrides), directory)

    run = configure.resolve_training(overrides, directory)
    optimizer = configure.compose_nodes(overrides, directory)["optimizer"]
    fixed = [key for key in _keys(overrides) if key.startswith(TUNED) and not key.startswith(SEARCH)]
    path = chosen.out or _recipe_path(run, directory)
    tuned = recipe.tuned_in(path)
    ranges = find_ranges(optimizer, fixed=fixed)
    common = [override for override in overrides if not override.lstrip("+").startswith(SEARCH)]
    session = Session(run, common, ranges, counts["seeds"], counts["runs"], directory)
    with disk.report_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()  # a folder that cannot be written is reported before the search
    try:
        session.search(propose_points(optimizer, ranges, counts["trials"]))
    except Interrupted as interrupted:
        return interrupted.code
    best = session.tried[0].results
    print(f"\n{make_table(session.tried)}\n\n{_summarize(session)}\n")
    missed = not any(map(list_rungs, best))
    if missed and not (chosen.misses and any(math.isfinite(measure_shortfall(result)) for result in best)):
        print(
            "the best trial reached no target, so no recipe is written; set a larger max_steps= or other ranges, or "
            "write the best values with --misses"
        )
        return 1
    keys = dict.fromkeys([*fixed, *ranges, "max_steps"])
    source = run.task.options().get("data", recipe.ANY)
    typed = add_directory([*chosen.overrides, *(["--misses"] if missed else [])], directory)
    tuned |= {source: recipe.collect_evidence(session, keys=list(keys), command=typed, name=path.stem)}
    defaults = [override for override in common if not override.startswith(TUNED)]
    disk.replace_file(path, recipe.render_recipe(configure.resolve_training(defaults, directory), tuned))
    print(f"written: {path}" + (" (no target reached)" if missed else ""))
    if chosen.out:
        folder = f"DIR/recipe/{_recipe_path(run, directory).name}"
        print(f"runs with --config-dir DIR use it as {folder}")
    return int(missed)


def _summarize(session: Session) -> str:
    """Return what the search spent, and whether it converged."""
    spent = f"{session.runs_spent:.3g} of {session.runs:g} runs spent"
    if session.converged:
        return f"converged, {spent}"
    if not any(map(list_rungs, session.tried[0].results)):
        return f"not converged, {spent}; no whole run of the best trial reached a target"
    ends = ", ".join(f"{key} beyond {session.tried[0].values[key]:g}" for key, _ in session.open_ends)
    return f"not converged, {spent}; not tried: {ends or 'the best values with all seeds'}"


def _split(typed: list[str], directory: Path | None = None) -> tuple[list[str], dict[str, int]]:
    """Split what was typed into the runs' overrides, and the numbers of trials, seeds and runs.

    Raises:
        UserError: for overrides that tuning does not accept.
    """
    counts = {key: str(count) for key, count in COUNTS.items()}
    overrides = []
    for override in typed:
        key, _, value = override.partition("=")
        if key in counts:
            counts[key] = value
            continue
        if key in ("recipe", "experiment"):
            raise UserError(f"{override}: tuning starts from the defaults; set the {key}'s values instead")
        if key == "baseline":
            command = render_command(f"suite +task=… {override}", directory)
            raise UserError(f"{override}: a baseline has no optimizer to tune; run {command}")
        adds = key.startswith(("+", "~")) and key.lstrip("+~").startswith(TUNED)
        if adds and not key.startswith(f"+{SEARCH}"):
            raise UserError(
                f"{override}: a recipe can only replace values, not add or remove them; first write a default for "
                f"{key.lstrip('+~')} into a YAML file"
            )
        overrides.append(override)
    for key, value in counts.items():
        least = 2 if key == "runs" else 1  # a short run and a whole one
        if not value.isdecimal() or int(value) < least:
            raise UserError(f"{key}={value}: must be a whole number of at least {least}")
    quiet = [] if "track" in _keys(overrides) else ["track=none"]
    return [*overrides, "~recipe", *quiet], {key: int(value) for key, value in counts.items()}


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.partition("=")[0] for override in overrides]


def _recipe_path(run: Run, directory: Path | None) -> Path:
    """Return the file in which `configure.resolve` looks for a tuned recipe."""
    folder = directory or Path(next(iter(importlib.import_module("suite.conf").__path__)))
    return folder / "recipe" / f"{run.task.name}-{run.optimizer.name}-{run.scale}.yaml"
