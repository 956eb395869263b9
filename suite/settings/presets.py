"""Writes `conf/optimizer/<member>.yaml` and `docs/settings.md` from the settings that members declare.

Type `python -m suite.settings.presets` after a change of a member's `settings.py`.
"""

import textwrap
from pathlib import Path

from suite.declared import Declared, explained
from suite.load import declared, members


def text(name: str, settings: type[Declared]) -> str:
    """Return the YAML file of one optimizer: sources, module, settings with their meaning, and search ranges."""
    sources = textwrap.wrap(
        " ".join(f"{settings.__doc__}".split()), 118, break_long_words=False, break_on_hyphens=False
    )
    lines = [*(f"# {line}" for line in sources), f"name: {name}", f"module: suite.optimizers.{name}"]
    lines += [f"{key}: {_value(field.default)}  # {explained(field)}" for key, field in settings.model_fields.items()]
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


def page() -> str:
    """Return the page `docs/settings.md`: a table for each optimizer."""
    lines = [
        "# Settings of the optimizers",
        "",
        "A run takes them as `optimizer.NAME=VALUE`, the torch class and the jax function as keyword arguments. A",
        "tuned recipe often sets other values than these defaults. A schedule may change those marked *scheduled*: in",
        'your own training script, they are in `param_groups` (torch) and `state["hyper"]` (jax).',
        "`suite list optimizers --settings` prints these tables, and",
        "`python -m suite.settings.presets` writes this page.",
    ]
    for name in members("optimizers"):
        if settings := declared(f"suite.optimizers.{name}"):
            lines += ["", f"## {name}", "", "| setting | default | meaning |", "|---|---|---|"]
            lines += [f"| `{key}` | {value} | {meaning} |" for key, value, meaning in rows(settings)]
    return "\n".join([*lines, ""])


def rows(settings: type[Declared]) -> list[tuple[str, str, str]]:
    """Return (name, default, meaning) of each setting."""
    scheduled = settings.names(scheduled=True)
    return [
        (key, _value(field.default), explained(field).replace("|", "/") + ("; scheduled" if key in scheduled else ""))
        for key, field in settings.model_fields.items()
    ]


def written_by_hand(path: Path) -> bool:
    """Return whether a file's `name:` is not its stem, as in `external.yaml`, where it is an interpolation."""
    return path.exists() and f"name: {path.stem}" not in path.read_text().splitlines()


def main() -> None:
    """Write the files of a checkout, except those written by hand."""
    root = Path(__file__).parents[2]
    for name in members("optimizers"):
        path = root / "conf" / "optimizer" / f"{name}.yaml"
        if (settings := declared(f"suite.optimizers.{name}")) and not written_by_hand(path):
            path.write_text(text(name, settings))
    (root / "docs" / "settings.md").write_text(page())


if __name__ == "__main__":
    main()
