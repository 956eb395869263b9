"""`suite reproduce`: measure published claims, and print what is known about them."""

import argparse
import re
from collections.abc import Sequence

from suite.claims import again, table
from suite.claims.runs import Budget, reproduce_claims
from suite.claims.standing import Standing
from suite.claims.standings import list_standings
from suite.contract import UserError
from suite.record.record import format_json

SCHEMA = 1
HELP = """Run what is missing to decide published claims, and print published value, measured value, interval and
verdict. Without names: every claim that this machine can decide, cheapest first. An interrupted command continues where
it stopped. A claim is reproduced or contradicted only by runs whose model, data, batch size and target equal the
paper's; smaller stand-ins say whether the pattern is seen. --again measures the committed values again, and says
whether the new ones agree. Exit codes: 0 no named claim is contradicted, 1 a run failed or a check of --again
disagrees, 2 bad usage, 3 a claim is contradicted, 129, 130 and 143 interrupted."""
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 60.0}


def main(arguments: Sequence[str]) -> int:
    """Run, or only list."""
    parser = argparse.ArgumentParser(prog="suite reproduce", description=HELP)
    parser.add_argument("names", nargs="*", metavar="CLAIM|PAPER|key=value", help="claims; overrides for their runs")
    parser.add_argument("--list", action="store_true", help="run nothing; print cost and verdict so far")
    parser.add_argument(
        "--again", action="store_true", help="measure again what is committed, and compare; changes nothing committed"
    )
    parser.add_argument("--scale", choices=["published", "stand-in"], help="only the checks of this size")
    parser.add_argument(
        "--budget", default="none", metavar="30m", help="start nothing that would take longer than this"
    )
    parser.add_argument(
        "--seeds", type=int, default=0, metavar="N", help="measure up to N seeds where a claim's most_seeds is less"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keep", action="store_true", help="copy what was measured into results/, to be committed")
    chosen = parser.parse_intermixed_args(arguments)
    names = [word for word in chosen.names if "=" not in word]
    overrides = [word for word in chosen.names if "=" in word]
    budget = Budget(_seconds(chosen.budget))
    if chosen.seeds < 0:
        raise UserError(f"--seeds {chosen.seeds}: not a number of seeds; give 1 or more")
    if chosen.again:
        if chosen.list:
            raise UserError("--again measures and --list does not; choose one of them")
        done = again.repeat_claims(names, overrides, budget, scale=chosen.scale, keep=chosen.keep, quiet=chosen.json)
        if chosen.json:
            print(format_json({"schema": SCHEMA, **again.format_repetition(done)}, indent=1))
        else:
            again.show_repetition(done)
        return done.code or int(not all(one.agrees for one in done.checks))
    code = 0
    if not chosen.list:
        options = {"scale": chosen.scale, "seeds": chosen.seeds, "keep": chosen.keep, "quiet": chosen.json}
        code = reproduce_claims(names, overrides, budget, **options)
    known = list_standings(names)
    if chosen.json:
        print(format_json({"schema": SCHEMA, "claims": [table.as_dict(one) for one in known]}, indent=1))
    elif chosen.list:
        table.show_list(known)
    else:
        table.show_table(known, everything=bool(names))
    return code or _verdict_code(known if names else [])


def _verdict_code(known: Sequence[Standing]) -> int:
    return 3 if any(one.verdict == "contradicted" for one in known) else 0


def _seconds(text: str) -> float:
    """A duration such as 30m, 90s or 2h in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text)
    if text == "none":
        return float("inf")
    if match is None:
        raise UserError(f"--budget {text}: not a duration; give a number with s, m or h, such as 30m")
    return float(match[1]) * UNITS[match[2]]
