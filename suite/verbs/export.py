"""`suite export`: write results in the formats of other projects."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from suite import disk
from suite.contract import UserError
from suite.entries import export_eval, export_mlperf, submission
from suite.entries.strict import Unreadable, escape_text
from suite.record.result import Result

HELP = """Write results in another project's format. RUN is a result.json, a run directory or a folder with either.
mlperf: lines of MLPerf's training log. every-eval-ever: a record of Every Eval Ever, schema 0.3.0. Fields that results
lack are left out, and named on standard error. Exit codes: 0 written, 2 bad usage, or a mandatory field is missing."""


def main(arguments: Sequence[str]) -> int:
    """Write results in another format."""
    parser = argparse.ArgumentParser(prog="suite export", description=HELP)
    formats = parser.add_subparsers(dest="format", required=True, metavar="FORMAT")
    for name, words in (("mlperf", "lines of MLPerf's log"), ("every-eval-ever", "a JSON record of schema 0.3.0")):
        sub = formats.add_parser(name, help=words, description=HELP)
        sub.add_argument("runs", nargs="+", type=Path, metavar="RUN")
        sub.add_argument("--out", type=Path, metavar="DIR", help="one file for each run; without it, print one run")
        if name == "every-eval-ever":
            sub.add_argument(
                "--organization", metavar="NAME", help="who publishes the record (mandatory in the schema)"
            )
            sub.add_argument(
                "--relationship",
                choices=export_eval.RELATIONSHIPS,
                help="of whoever ran it to the method's developers (mandatory in the schema)",
            )
            sub.add_argument("--created", type=int, metavar="SECONDS", help="since 1970 (default: now)")
    chosen = parser.parse_args(arguments)
    results = list(_results(chosen.runs))
    if chosen.out is None and len(results) > 1:
        raise UserError(f"{len(results)} runs: use --out DIR to write one file for each")
    if chosen.format == "mlperf":
        texts = [(path, result, _mlperf(path, result)) for path, result in results]
        lacking = [line for _, result in results for line in export_mlperf.list_lacking(result).items()]
        missing, ending = [f"{keys}: {reason}" for keys, reason in dict.fromkeys(lacking)], ".txt"
    else:
        source = _source(chosen)
        texts = [(path, result, _eval(path, result, source)) for path, result in results]
        metrics = sorted({metric for _, result in results for metric in export_eval.left_out(result)})
        missing = [f"{escape_text(metric)}: no target says whether lower is better" for metric in metrics]
        missing.append("generation_config, uncertainty: a result has neither prompts nor repetitions")
        ending = ".json"
    for _, result, text in texts:
        if chosen.out is None:
            print(text, end="")
        else:
            target = chosen.out / submission.name_of(result).with_suffix(ending)
            disk.make_folder(target.parent)
            disk.replace_file(target, text)
            print(target)
    for line in missing:
        print(f"left out {line}", file=sys.stderr)
    return 0


def _results(paths: Sequence[Path]) -> Iterator[tuple[Path, Result]]:
    """Yield the results that the paths name, checked as `suite submit` does."""
    for path in paths:
        try:
            files = submission.list_files(path)
        except Unreadable as error:
            raise UserError(f"{path}: {error}") from error
        for file in files:
            checked = submission.check(file)
            if checked.entry is None or checked.faults:
                raise UserError(f"{file}: {checked.faults[0]}")
            yield file, checked.entry.result


def _source(chosen: argparse.Namespace) -> export_eval.Source:
    """Return what the schema demands beside the result."""
    if not chosen.organization:
        raise UserError(
            "source_organization_name is mandatory in the schema, and a result does not say who publishes it; "
            "use --organization NAME"
        )
    if not chosen.relationship:
        raise UserError(
            "evaluator_relationship is mandatory in the schema, and a result does not say it; "
            f"use --relationship {'|'.join(export_eval.RELATIONSHIPS)}"
        )
    created = int(time.time()) if chosen.created is None else chosen.created
    return export_eval.Source(chosen.organization, chosen.relationship, created)


def _mlperf(path: Path, result: Result) -> str:
    try:
        return "".join(f"{line}\n" for line in export_mlperf.format_log(result))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _eval(path: Path, result: Result, source: export_eval.Source) -> str:
    try:
        return json.dumps(export_eval.eval_record(result, source), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
