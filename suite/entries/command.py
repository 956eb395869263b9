"""Command of a result, compared with its configuration: readers copy commands, so no other text is shown as one."""

import shlex
from collections.abc import Iterator
from typing import Any

from suite.contract import UserError
from suite.entries.strict import escape_text
from suite.record import record
from suite.record.result import Result
from suite.settings.configure import ALTERNATIVES, resolve
from suite.settings.effects import differing_keys, select_settings
from suite.settings.overrides import CHOICES, flatten_values, parse_values, separate_directory

# what the configuration is composed from, and does not contain
COMPOSED = tuple(f"{node}.{key}." for node, keys in ALTERNATIVES.items() for key in keys)
UNNAMED = ("recipe", "experiment", "network")  # choices whose names a configuration does not contain


def show_command(result: Result) -> str:
    """Return the command of a result; an empty text if it contradicts the configuration."""
    return "" if any(list_contradicting_words(result)) else result.command


def list_needs(result: Result) -> Iterator[str]:
    """One line for each package or folder outside the suite that a result's command needs, with its origin."""
    environment = result.environment
    module = str((result.spec.config.get("optimizer") or {}).get("module", "suite."))
    origins = environment.origins or {}
    outside = not module.startswith("suite.") or module.startswith("suite.optimizers.external")
    if outside and not origins:
        yield "code from outside the suite, whose source the result does not state"
    for name, origin in origins.items():
        parts = [f"version {origin['version']}"] if "version" in origin else []
        parts += [f"commit {str(origin['commit'])[:12]}"] if "commit" in origin else []
        parts += ["with uncommitted changes, which nobody else has"] if origin.get("dirty") else []
        parts += [f"from {origin['source']}"] if "source" in origin else []
        parts += [f"by {origin['author']}"] if "author" in origin else []
        yield escape_text(f"{name}: {', '.join(parts) or 'in no repository; ask whoever ran it'}")


def list_contradicting_words(result: Result) -> Iterator[str]:
    """One line for each word of a result's command that its configuration contradicts."""
    words = _split(result.command)
    if words is None:
        yield "command: not `suite` with words key=value, as the suite quotes them"
        return
    config = flatten_values(record.load_run(result).plain())
    spec = result.spec
    named = {key: getattr(spec, key, config.get(f"{key}.name")) for key in CHOICES}
    for key, typed in words.items():
        own = config.get(key, named.get(key))
        if key not in UNNAMED and not key.startswith(COMPOSED) and typed != own:
            yield f"command: has {escape_text(f'{key}={typed}')}, but the configuration has {escape_text(own)}"


def list_missing_words(result: Result) -> Iterator[str]:
    """One line if a result's command, as this version reads it, gives other settings than its configuration."""
    try:
        _, overrides = separate_directory(shlex.split(result.command)[1:])
        run = resolve(overrides)
    except (UserError, ValueError):
        return  # presets of another machine, or a contradiction that `list_contradicting_words` reports
    made = record.load_run(result)
    if made.tuning.trials and not run.tuning.trials:
        yield "command: names no tuned recipe, but the configuration does"
    typed, own = (select_settings(each, ("weights", "measurement"), ("setting", "replicate")) for each in (run, made))
    if keys := differing_keys(typed, own):
        yield escape_text(f"command: gives other values of {', '.join(keys)} than the configuration")


def _split(command: str) -> dict[str, Any] | None:
    """Return the values in a command by key; None if it is not exactly what the suite records."""
    try:
        program, *words = shlex.split(command)
        values = flatten_values(parse_values(separate_directory(words)[1]))
    except (ValueError, UserError):
        return None
    return values if program == "suite" and shlex.join([program, *words]) == command else None
