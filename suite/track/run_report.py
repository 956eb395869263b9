"""Writes one page about one or several runs, as HTML or Markdown. The same results give the same bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from suite import published
from suite.published import Row
from suite.published.matching import choose_rows, select_comparable
from suite.record import record
from suite.record.result import Result
from suite.track import words

TEMPLATES = {"html": "report.html.j2", "md": "report.md.j2"}


@dataclass(frozen=True)
class Report:
    """Contents of a page about one run.

    Attributes:
        title: task, optimizer, communication, backend and seed.
        facts: sentences on how the run ended, its times and its data.
        tables: (caption, heads, rows); a head that begins with `>` marks numbers.
        comparison: a sentence on what may be compared with the published rows.
        claims: a sentence for each claim that the run bears on.
        curve: the curves as SVG; None if the run's event log is absent.
    """

    title: str
    facts: list[str]
    tables: list[tuple[str, list[str], list[list[str]]]]
    comparison: str
    claims: list[str]
    curve: str | None = None


def make_report(
    result: Result, *, rows: Sequence[Row] | None = None, claims: Sequence[str] = (), curve: bytes | None = None
) -> Report:
    """Return what there is to say about a run.

    Args:
        result: contents of its result.json.
        rows: every published row of its task; None: they are looked up.
        claims: a sentence for each claim that the run bears on.
        curve: its curves as SVG.
    """
    spec = result.spec
    parts = [spec.task, record.method_of(spec), spec.comm, spec.backend, f"seed {spec.seed}"]
    rows = published.find_rows(spec.task) if rows is None else rows
    nearest = choose_rows(rows, record.load_run(result), samples=result.data.samples.get("train", 0))
    tables: list[tuple[str, list[str], list[list[str]]]] = [("Targets", list(words.LADDER), words.list_ladder(result))]
    if nearest:
        tables.append(("Published rows", list(words.PUBLISHED), words.published_cells(nearest)))
    tables.append(("Environment", ["", ""], list_environment(result)))
    comparison = published.compare_rows(
        spec.task,
        select_comparable(rows, spec.task),
        stand_in=spec.scale != "paper",
        batch_size=spec.batch_size,
    )
    svg = None if curve is None else curve.decode()[curve.decode().index("<svg") :]
    plain = [(caption, [_plain(head) for head in heads], cells) for caption, heads, cells in tables if cells]
    return Report(" · ".join(filter(None, parts)), list_facts(result), plain, comparison, list(claims), svg)


def _plain(head: str) -> str:
    """A table's head without the share of the width."""
    return head.partition("*")[0]


def list_facts(result: Result) -> list[str]:
    """Sentences on how the run ended, its times and its data."""
    missed = words.list_missed(result)
    lines = [
        words.describe_outcome(result) + (f". Not reached: {', '.join(missed)}" if missed else ""),
        words.describe_speed(result),
    ]
    if crowding := words.describe_crowding(result):
        lines.append(crowding)
    if result.busy_pauses:
        lines.append(words.warn_unbilled(result))
    if result.bytes.kernel:
        lines.append(words.describe_wire(result.bytes.sent, result.bytes.kernel))
    data = result.data
    note = f"; {data.note}" if data.note else ""
    lines.append(f"data: {data.label}, {data.samples.get('train', 0):,} training {data.unit or 'samples'}{note}")
    if losses := record.read_data(data).losses():
        lines.append(f"data: {losses}")
    return [line[:1].upper() + line[1:] for line in lines]


def list_environment(result: Result) -> list[list[str]]:
    """Machine, versions, source and command of a run, as rows of a table."""
    made = result.environment
    gpus = ", ".join(map(str, made.gpus or ()))  # results of older versions do not name any
    versions = made.frameworks | (made.gpu_software or {})
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    source = f"{made.commit or 'unknown'}{' with uncommitted changes' if made.dirty else ''}"
    tuning = result.tuning
    return [
        ["machine", f"{made.cpu}, {made.cores} cores, {made.memory_bytes / 2**30:.0f} GiB"],
        ["accelerators", gpus or "none"],
        ["versions", f"Python {made.python}, {packages}"],
        ["commit", source],
        ["tuning", f"{tuning.source}, {tuning.trials} trials"],
        ["command", result.command],
    ]


def render_page(reports: Sequence[Report], kind: str) -> str:
    """Return the page as text.

    Args:
        reports: of one or several runs.
        kind: `html` or `md`.
    """
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("suite.track"),
        autoescape=kind == "html",
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters["cell"] = _cell
    return templates.get_template(TEMPLATES[kind]).render(reports=reports).rstrip("\n") + "\n"


def _cell(text: str) -> str:
    """Text that cannot end a cell of a Markdown table, nor become HTML there."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    return escaped.replace("|", "\\|")
