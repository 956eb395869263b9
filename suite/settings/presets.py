"""Writes `conf/optimizer/<member>.yaml` and `docs/settings.md` from the declared settings.

Run `python -m suite.settings.presets` after a change of a member's settings.
"""

import textwrap
from pathlib import Path

from suite.comm.settings import CommSettings, FactorSettings
from suite.declared import Declared, effects_of, explain_field, has_groups
from suite.load import find_members
from suite.nodes import load_settings
from suite.settings.run import PartitionSettings, Run
from suite.settings.schedule import ScheduleSettings

INTRODUCTION = """
Set each as `KEY=VALUE`, as in `suite task=resnet50 seed=1 optimizer.lr=0.1`. A dash as default means that a YAML file
gives the value, because it depends on the preset, the scale or the data. The last column says what a setting can
change: the trained *weights*, the *measurement* (data, model, metric, cadence), the *time*. The hash of a run, the
rows of the leaderboard and the evidence of claims follow from it. The settings of an optimizer change weights and
time. A tuned recipe often sets other values than these defaults. A schedule may change those marked *scheduled*: in
your own training script, they are in `param_groups` (torch) and `state["hyper"]` (jax). `suite list optimizers
--settings` prints the tables of optimizers, and `python -m suite.settings.presets` writes this page.
"""


def render_yaml(name: str, settings: type[Declared]) -> str:
    """Return the YAML file of one optimizer: sources, module, settings with their meaning, and search ranges."""
    sources = textwrap.wrap(
        " ".join(f"{settings.__doc__}".split()), 118, break_long_words=False, break_on_hyphens=False
    )
    lines = [*(f"# {line}" for line in sources), f"name: {name}", f"module: suite.optimizers.{name}"]
    lines += [
        f"{key}: {_value(field.default)}  # {explain_field(field)}" for key, field in settings.model_fields.items()
    ]
    ranges = ", ".join(
        f"{key}: [{_value(least)}, {_value(largest)}, {scale}]"
        for key, (least, largest, scale) in settings.searched().items()
    )
    return "\n".join([*lines, f"search: {{{ranges}}}  # what `suite tune` tries", ""])


def _value(value: object) -> str:
    """A number, word or null in YAML 1.1, which reads 1.0e-8 as a number, but 1e-8 as text."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and "e" in f"{value:g}":
        digits, _, exponent = f"{value:g}".partition("e")
        return f"{digits if '.' in digits else digits + '.0'}e{int(exponent)}"
    return f"{value}"


def render_page() -> str:
    """Return the page `docs/settings.md`: a table for the run, each of its groups, each task and each optimizer."""
    lines = ["# Settings", "", *textwrap.wrap(INTRODUCTION.strip(), 118, break_on_hyphens=False)]
    groups: dict[str, type[Declared]] = {"schedule.": ScheduleSettings, "partition.": PartitionSettings}
    groups |= {"comm.": CommSettings, "comm.factors.": FactorSettings}
    lines += _table("Run", Run, effects=True)
    for prefix, group in groups.items():
        lines += _table(f"`{prefix}`", group, effects=True)
    for name in find_members("tasks"):
        if settings := load_settings(f"suite.tasks.{name}"):
            lines += _table(f"task={name}", settings, effects=True)
    for name in find_members("optimizers"):
        if settings := load_settings(f"suite.optimizers.{name}"):
            lines += _table(name, settings, effects=False)
    return "\n".join([*lines, ""])


def _table(title: str, settings: type[Declared], *, effects: bool) -> list[str]:
    """Return the lines of one table."""
    head = ["| setting | default | meaning | affects |", "|---|---|---|---|"]
    lines = ["", f"## {title}", "", *(head if effects else ["| setting | default | meaning |", "|---|---|---|"])]
    for key, default, meaning in list_rows(settings):
        affects = effects_of(settings)[key]
        words = ", ".join([*affects.affects, *([affects.role] if affects.role != "setting" else [])])
        lines.append(f"| `{key}` | {default} | {meaning} |" + (f" {words} |" if effects else ""))
    return lines


def list_rows(settings: type[Declared]) -> list[tuple[str, str, str]]:
    """Return (name, default, meaning) of each setting that is a value, not a group of settings."""
    scheduled = settings.names(scheduled=True)
    return [
        (
            key,
            "—" if field.is_required() else _value(field.default),
            explain_field(field).replace("|", "/") + ("; scheduled" if key in scheduled else ""),
        )
        for key, field in settings.model_fields.items()
        if not has_groups(settings, key) and key not in ("name", "module")
    ]


def written_by_hand(path: Path) -> bool:
    """Return whether a file's `name:` is not its stem, as in `external.yaml`, where it is an interpolation."""
    return path.exists() and f"name: {path.stem}" not in path.read_text().splitlines()


def main() -> None:
    """Write the files of a checkout, except those written by hand."""
    root = Path(__file__).parents[2]
    for name in find_members("optimizers"):
        path = root / "conf" / "optimizer" / f"{name}.yaml"
        if (settings := load_settings(f"suite.optimizers.{name}")) and not written_by_hand(path):
            path.write_text(render_yaml(name, settings))
    (root / "docs" / "settings.md").write_text(render_page())


if __name__ == "__main__":
    main()
