"""Composition with Hydra. It takes a quarter of a second, so outcomes are kept below `~/.cache/suite/configurations`.

The name of a kept file is a checksum of all that the outcome depends on: the overrides, every YAML file that Hydra
could read, the environment variables that these name, and the versions of Hydra and OmegaConf. With an interpolation
that could depend on anything else, such as the time, nothing is kept.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from suite.load import is_node

VARIABLE = re.compile(rb"\$\{oc\.env:(\w+)")
IMPURE = re.compile(rb"\$\{(?!oc\.select:|oc\.env:\w)[\w.]+:")  # by another resolver, or by a variable not known yet
MOST_KEPT = 2_000  # outcomes, of about 5 KB each; then the older half is deleted
MOST_ENTRIES = 1_000  # of a user's folder of configurations that are looked at


def compose_overrides(overrides: Sequence[str], directory: Path | None = None) -> dict[str, Any]:
    """Return the nested settings that Hydra composes, resolved.

    Args:
        overrides: in Hydra's syntax.
        directory: the user's own configuration groups, in addition to the suite's.

    Raises:
        HydraException, OmegaConfBaseException: a choice is unknown, or an override cannot be applied.
    """
    path = _find_kept(overrides, directory)
    if path and path.exists():
        with suppress(OSError, ValueError):
            return json.loads(path.read_bytes())
    composed = _compose(overrides, directory)
    if path and json.loads(text := json.dumps(composed)) == composed:
        _keep(path, text)
    return composed


def _compose(overrides: Sequence[str], directory: Path | None) -> dict[str, Any]:
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    path = [f"hydra.searchpath=[file://{directory.resolve()}]"] if directory else []
    with initialize_config_module("suite.conf", version_base="1.3"):
        composed = OmegaConf.to_container(compose("config", [*path, *overrides]), resolve=True)
    assert is_node(composed)
    return composed


def _find_kept(overrides: Sequence[str], directory: Path | None) -> Path | None:
    """Return the file of an outcome; None if the outcome may depend on more than its name covers."""
    if importlib.util.find_spec("hydra_plugins"):  # they may add search paths
        return None
    roots = [*map(Path, importlib.import_module("suite.conf").__path__), *([directory] if directory else [])]
    files = [_list_configurations(root) for root in roots]
    if any(found is None for found in files):
        return None
    parts = [override.encode() for override in overrides]
    parts += [importlib.metadata.version(package).encode() for package in ("hydra-core", "omegaconf")]
    for path in (path for found in files for path in found or ()):
        parts += [str(path).encode(), path.read_bytes()]
    if any(map(IMPURE.search, parts)) or any(word.lstrip("+~").startswith("hydra.") for word in overrides):
        return None
    names = sorted({name for part in parts for name in VARIABLE.findall(part)})
    parts += [b"%s=%s" % (name, os.environb[name]) for name in names if name in os.environb]
    digest = hashlib.sha256(b"".join(b"%d %s" % (len(part), part) for part in parts))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "suite" / "configurations" / f"{digest.hexdigest()[:32]}.json"


def _list_configurations(root: Path) -> list[Path] | None:
    """Return the YAML files below a folder; None if it has more than MOST_ENTRIES files and folders."""
    folders, entries = [root], 0
    found: list[Path] = []
    for folder in folders:  # the list grows
        inside = sorted(folder.iterdir())
        entries += len(inside)
        if entries > MOST_ENTRIES:
            return None
        folders += [path for path in inside if path.is_dir()]
        found += [path for path in inside if path.suffix == ".yaml" and path.is_file()]
    return found


def _keep(path: Path, text: str) -> None:
    """Write a file whole or not at all; a folder that cannot be written keeps nothing."""
    partial = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = list(path.parent.iterdir())
        if len(kept) >= MOST_KEPT:
            for file in sorted(kept, key=lambda file: file.stat().st_mtime)[: MOST_KEPT // 2]:
                file.unlink(missing_ok=True)
        partial.write_text(text)
        partial.replace(path)
