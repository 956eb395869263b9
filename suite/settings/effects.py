"""Consequences of what settings affect: the hash of a run, and in which settings two runs differ."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from suite.declared import Effect, Leaf, Role
from suite.load import Plain, is_node
from suite.settings.run import AnyRun

ANY: tuple[Effect, ...] = ("weights", "measurement", "time")


def hash_run(run: AnyRun, config: Mapping[str, Any] | None = None) -> str:
    """Return the sha256 (12 digits) of all settings that affect anything; it names the run directory.

    The seed is one of them. Places are not: what they contain has a checksum in the run's fingerprint.

    Args:
        run: the run.
        config: of an older result; settings that it lacks did not exist when its hash was computed.
    """
    settings = select_settings(run, ANY, ("setting", "replicate"))
    if config is not None:
        settings = {key: value for key, value in settings.items() if _contains(config, key)}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def select_settings(run: AnyRun, affecting: Iterable[Effect], roles: Iterable[Role] = ("setting",)) -> dict[str, Plain]:
    """Return the values, by dotted key, of the settings that affect one of some things.

    Args:
        run: the run.
        affecting: what the settings must affect, at least one of them.
        roles: roles of the settings.
    """
    wanted, accepted = set(affecting), set(roles)
    return {leaf.key: leaf.value for leaf in run.leaves() if _affects(leaf, wanted) and leaf.effects.role in accepted}


def differing_keys(one: Mapping[str, Plain], other: Mapping[str, Plain]) -> list[str]:
    """Return the keys at which two selections of settings differ."""
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def _contains(config: Mapping[str, Any], key: str) -> bool:
    first, _, rest = key.partition(".")
    return first in config and (not rest or (is_node(config[first]) and _contains(config[first], rest)))


def _affects(leaf: Leaf, wanted: set[Effect]) -> bool:
    return bool(wanted & set(leaf.effects.affects))
