"""What the papers say of a planned run: the row that it repeats, and the devices that they used."""

from collections.abc import Iterable, Sequence
from typing import Any

from suite import configure, published
from suite.contract import UserError
from suite.published import Row

FEW = 3  # ids named


def repeated(overrides: Iterable[str]) -> Row | None:
    """The published row that `experiment=` names; None without one, or for an experiment of the user's own."""
    chosen = dict(override.split("=", 1) for override in configure.clean(overrides) if "=" in override)
    try:
        return published.row(chosen["experiment"]) if "experiment" in chosen else None
    except UserError:
        return None


def devices(rows: Iterable[Row], *, batch_size: int) -> list[dict[str, Any]]:
    """The numbers of devices that rows name, fewest first: `devices same_batch rows`, the rows by their ids."""
    used: dict[tuple[int, bool], list[str]] = {}
    for row in rows:
        if row.devices:
            used.setdefault((row.devices, row.batch_size == batch_size), []).append(row.id)
    return [{"devices": count, "same_batch": same, "rows": ids} for (count, same), ids in sorted(used.items())]


def report(row: Row) -> tuple[str, str]:
    """What the paper reports in a row, in its own words and units, and where."""
    number = lambda value: f"{value:,}" if isinstance(value, int) else value  # noqa: E731
    parts = [
        ", ".join(filter(None, (row.optimizer, row.model, row.dataset))),
        f"{row.value} {row.metric}",
        f"batch {number(row.batch_size)}" if row.batch_size else "",
        f"{number(row.steps)} steps" if row.steps else "",
        f"{row.epochs:g} epochs" if row.epochs else "",
        f"{row.devices:,} × {row.hardware or 'devices'}" if row.devices else row.hardware or "",
        row.time_as_printed or "",
    ]
    return f"{row.id}: {' · '.join(filter(None, parts))}", f"{row.citation}, {row.where_seen}"


def used(found: Sequence[dict[str, Any]], *, batch_size: int, world: int) -> str:
    """The papers' numbers of devices beside the planned one: those for the same batch, or else the range."""
    planned = f"planned {world:,}, world=N plans another number"
    if same := [one for one in found if one["same_batch"]]:
        counts = ", ".join(f"{one['devices']:,} ({_named(one['rows'])})" for one in same)
        return f"{counts} devices for batch {batch_size:,}; {planned}"
    if found:
        least, most = found[0]["devices"], found[-1]["devices"]
        return f"{least:,} to {most:,} devices, for other batches than {batch_size:,}; {planned}"
    return f"an unknown number of devices, no published row says it; {planned}"


def _named(ids: Sequence[str]) -> str:
    return ", ".join(ids[:FEW]) + (f" and {len(ids) - FEW} more" if len(ids) > FEW else "")
