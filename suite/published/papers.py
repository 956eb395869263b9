"""Published rows for `suite plan`: the row that a run repeats, and the numbers of devices that papers used."""

from collections.abc import Iterable, Sequence
from typing import Any

from suite import published
from suite.contract import UserError
from suite.published import Row
from suite.settings.overrides import clean_overrides

FEW = 3  # row ids that a line lists


def find_repeated(overrides: Iterable[str]) -> Row | None:
    """Find the published row that `experiment=` names; None without one, or if the user wrote the experiment."""
    chosen = dict(override.split("=", 1) for override in clean_overrides(overrides) if "=" in override)
    try:
        return published.find_row(chosen["experiment"]) if "experiment" in chosen else None
    except UserError:
        return None


def list_devices(rows: Iterable[Row], *, batch_size: int) -> list[dict[str, Any]]:
    """List the numbers of devices that published rows used.

    Args:
        rows: the task's published rows.
        batch_size: of the planned run.

    Returns:
        One dictionary for each number of devices, fewest first: `devices`, `same_batch` (whether the rows have the
        planned batch size) and `rows` (their ids).
    """
    ids_by_devices: dict[tuple[int, bool], list[str]] = {}
    for row in rows:
        if row.devices:
            ids_by_devices.setdefault((row.devices, row.batch_size == batch_size), []).append(row.id)
    return [
        {"devices": count, "same_batch": same, "rows": ids} for (count, same), ids in sorted(ids_by_devices.items())
    ]


def format_row(row: Row) -> tuple[str, str]:
    """A published row in two lines: its contents in the paper's words and units, and its source."""
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


def format_devices(published: Sequence[dict[str, Any]], *, batch_size: int, world: int) -> str:
    """Compare the papers' numbers of devices with the planned one.

    Args:
        published: as `devices` returns them.
        batch_size: of the planned run.
        world: planned number of devices.

    Returns:
        The numbers for the same batch size if there are any, otherwise the range over all batch sizes.
    """
    planned = f"this plan has {world:,}; set world=N for another number"
    if same := [count for count in published if count["same_batch"]]:
        counts = ", ".join(f"{count['devices']:,} ({_listed(count['rows'])})" for count in same)
        return f"{counts} devices for batch {batch_size:,}; {planned}"
    if published:
        least, most = published[0]["devices"], published[-1]["devices"]
        return f"{least:,} to {most:,} devices, with batch sizes other than {batch_size:,}; {planned}"
    return f"an unknown number of devices: no published row gives one; {planned}"


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:FEW]) + (f" and {len(ids) - FEW} more" if len(ids) > FEW else "")
