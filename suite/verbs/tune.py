"""`suite tune`: try a fixed list of hyper-parameters, and write the best ones into a recipe with the evidence."""

import argparse
import importlib
import math
from collections.abc import Sequence
from pathlib import Path

from suite import disk
from suite.contract import UserError
from suite.settings import configure
from suite.settings.overrides import TUNED, clean_overrides
from suite.settings.run import Run
from suite.tuning import recipe
from suite.tuning.session import Interrupted, rank_trials, run_trials
from suite.tuning.trials import PREFIX, list_rungs, make_table, measure_shortfall, propose_trials

SEARCH = f"{PREFIX}search"
TRIALS, SEEDS = 8, 3
HELP = f"""Run a fixed quasi-random list of trials, each in a separate process. Rank them by the number of targets
they reach, then by the steps to the last one. Write the best values into a recipe, which later runs use automatically.
A trial is ranked by the worst of its seeds: the best trial runs again with the next seed, until the best trial has run
with {SEEDS} seeds. The ranges stand in the optimizer's YAML file, search: {{lr: [low, high, log]}}; a value on the
command line is not searched, and is recorded. Trials start from the defaults, not from an earlier recipe. Finished
trials do not run again. The recipe's values for other data are kept. If no trial reaches a target, no recipe is
written; with --misses, the trial that came closest to the first target is written. Exit codes: 0 written, 1 no trial
reached a target, 2 bad usage, 130 and 143 interrupted (the same command continues)."""


def main(arguments: Sequence[str]) -> int:
    """Run the trials and write the recipe.

    Args:
        arguments: what was typed after `suite tune`.

    Returns:
        0 written, 1 no trial reached a target, 130 and 143 interrupted.

    Raises:
        UserError: for overrides that cannot be tuned, or a trial that could not run.
    """
    parser = argparse.ArgumentParser(prog="suite tune", description=HELP)
    parser.add_argument(
        "overrides",
        nargs="+",
        metavar="key=value",
        help="as for a run; also trials=N (default: 8) and seeds=N (default: 3)",
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
    overrides, trials, seeds = _split(clean_overrides(chosen.overrides))
    directory = chosen.config_dir

    run = configure.resolve_training(overrides, directory)
    optimizer = configure.compose_nodes(overrides, directory)["optimizer"]
    fixed = [key for key in _keys(overrides) if key.startswith(TUNED) and not key.startswith(SEARCH)]
    path = chosen.out or _recipe_path(run, directory)
    tuned = recipe.tuned_in(path)
    points = propose_trials(optimizer, fixed=fixed, trials=trials)
    common = [override for override in overrides if not override.lstrip("+").startswith(SEARCH)]
    try:
        done = list(run_trials(points, common, directory))
        ranked = rank_trials(done, common, seed=run.seed, seeds=seeds, directory=directory)
    except Interrupted as interrupted:
        return interrupted.code
    print(f"\n{make_table(ranked)}\n")
    missed = not list_rungs(ranked[0].result)
    if missed and not (chosen.misses and math.isfinite(measure_shortfall(ranked[0].result))):
        print("no trial reached a target, so no recipe is written; set a larger max_steps=, or other ranges")
        return 1
    keys = dict.fromkeys([*fixed, *points[0], "max_steps"])
    source = run.task.options().get("data", recipe.ANY)
    typed = [*chosen.overrides, *(["--misses"] if missed else [])]
    tuned |= {source: recipe.collect_evidence(ranked, keys=list(keys), command=typed, name=path.stem)}
    defaults = [override for override in common if not override.startswith(TUNED)]
    path.parent.mkdir(parents=True, exist_ok=True)
    disk.replace_file(path, recipe.render_recipe(configure.resolve_training(defaults, directory), tuned))
    print(f"written: {path}" + (" (no trial reached a target)" if missed else ""))
    return int(missed)


def _split(typed: list[str]) -> tuple[list[str], int, int]:
    """Split what was typed into the runs' overrides, the number of trials and the number of seeds.

    Raises:
        UserError: for overrides that tuning does not accept.
    """
    counts = {"trials": str(TRIALS), "seeds": str(SEEDS)}
    overrides = []
    for override in typed:
        key, _, value = override.partition("=")
        if key in counts:
            counts[key] = value
            continue
        if key in ("recipe", "experiment"):
            raise UserError(f"{override}: tuning starts from the defaults; set the {key}'s values instead")
        if key == "baseline":
            raise UserError(f"{override}: a baseline has no optimizer to tune; run suite +task=… {override}")
        adds = key.startswith(("+", "~")) and key.lstrip("+~").startswith(TUNED)
        if adds and not key.startswith(f"+{SEARCH}"):
            raise UserError(
                f"{override}: a recipe can only replace values, not add or remove them; first write a default for "
                f"{key.lstrip('+~')} into a YAML file"
            )
        overrides.append(override)
    for key, value in counts.items():
        if not value.isdecimal() or int(value) < 1:
            raise UserError(f"{key}={value}: must be a whole number of at least 1")
    quiet = [] if "track" in _keys(overrides) else ["track=none"]
    return [*overrides, "~recipe", *quiet], int(counts["trials"]), int(counts["seeds"])


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.partition("=")[0] for override in overrides]


def _recipe_path(run: Run, directory: Path | None) -> Path:
    """Return the file in which `configure.resolve` looks for a tuned recipe."""
    folder = directory or Path(next(iter(importlib.import_module("suite.conf").__path__)))
    return folder / "recipe" / f"{run.task.name}-{run.optimizer.name}-{run.scale}.yaml"
