"""Composition with Hydra. It takes a quarter of a second, so outcomes are kept below `~/.cache/suite/configurations`.

The name of a kept file is a checksum of all that the outcome depends on: the overrides, every YAML file that Hydra
could read, the environment variables that these name, and the versions of Hydra and OmegaConf. An outcome that could
depend on anything else is not kept: one with an interpolation other than those of PURE, for example.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from suite.load import Plain, is_node

# Interpolations whose value follows from the files and a named variable: ${oc.select:…}, ${oc.env:NAME}, ${task.name}
# and ${scales.${scale}}. Every ${ must begin one of them.
PURE = re.compile(rb"\$\{(?:oc\.select:|oc\.env:(\w+)[,}]|(?!oc\b)[\w.\[\]]*(?:\}|(?<=[.\[])\$\{))")
OPENING = re.compile(rb"\$\{")
MOST_KEPT = 2_000  # outcomes, of about 5 KB each; then the older half is deleted
MOST_ENTRIES = 1_000  # of a user's folder of configurations that are looked at


def compose_overrides(overrides: Sequence[str], directory: Path | None = None) -> dict[str, Plain]:
    """Return the nested settings that Hydra composes, resolved.

    Args:
        overrides: in Hydra's syntax.
        directory: the user's own configuration groups, in addition to the suite's.

    Raises:
        HydraException, OmegaConfBaseException: a choice is unknown, or an override cannot be applied.
    """
    path = find_kept(overrides, directory)
    if path and (kept := _read_kept(path)):
        return kept
    composed = _compose(overrides, directory)
    if path and find_kept(overrides, directory) == path:  # else a file was changed meanwhile
        _keep(path, composed)
    return composed


def _compose(overrides: Sequence[str], directory: Path | None) -> dict[str, Plain]:
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    path = [f"hydra.searchpath=[file://{directory.resolve()}]"] if directory else []
    with initialize_config_module("suite.conf", version_base="1.3"):
        composed = OmegaConf.to_container(compose("config", [*path, *overrides]), resolve=True)
    assert is_node(composed)
    return composed


def find_kept(overrides: Sequence[str], directory: Path | None) -> Path | None:
    """Return the file of an outcome; None if the outcome may depend on more than its name covers."""
    if importlib.util.find_spec("hydra_plugins"):  # they may add search paths
        return None
    words = [override.encode() for override in overrides]
    if any(word.lstrip(b"+~").startswith(b"hydra.") for word in words):
        return None
    parts = [importlib.metadata.version(package).encode() for package in ("hydra-core", "omegaconf")]
    with suppress(OSError, RuntimeError):  # a file that cannot be read; no home directory
        texts = [*words]
        for root in [*map(Path, importlib.import_module("suite.conf").__path__), *([directory] if directory else [])]:
            for path in _list_configurations(root):
                parts.append(str(path).encode())
                texts.append(path.read_bytes() if path.is_file() else b"")
        if any(b"\\" in text for text in texts[len(words) :]):  # an escape may hide an interpolation
            return None
        if not all(PURE.match(text, place.start()) for text in texts for place in OPENING.finditer(text)):
            return None
        names = sorted({name for text in texts for name in PURE.findall(text) if name})
        parts += texts + [b"%s=%s" % (name, os.environb[name]) for name in names if name in os.environb]
        digest = hashlib.sha256(b"".join(b"%d %s" % (len(part), part) for part in parts))
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "suite" / "configurations" / digest.hexdigest()[:32]
    return None


def _list_configurations(root: Path) -> list[Path]:
    """Return the folders and YAML files below a folder.

    Raises:
        OSError: a folder cannot be read, or there are more than MOST_ENTRIES files and folders.
    """
    folders, entries = [root], 0
    found: list[Path] = []
    for folder in folders:  # the list grows
        inside = sorted(folder.iterdir())
        entries += len(inside)
        if entries > MOST_ENTRIES:
            raise OSError(f"{root}: too large")
        folders += [path for path in inside if path.is_dir()]
        found += [path for path in inside if path.suffix == ".yaml"]
    return [*folders, *found]


def _read_kept(path: Path) -> dict[str, Plain] | None:
    """Return a kept outcome; None if there is none, or the file is damaged."""
    with suppress(OSError, ValueError):
        checksum, _, text = path.read_bytes().partition(b"\n")
        if int(checksum, 16) == zlib.crc32(text):
            return json.loads(text)
    return None


def _keep(path: Path, composed: dict[str, Plain]) -> None:
    """Write an outcome whole or not at all: not if JSON has no equal value, or the folder cannot be written."""
    partial = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError, TypeError):
        text = json.dumps(composed)
        if json.loads(text) != composed:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = list(path.parent.iterdir())
        if len(kept) >= MOST_KEPT:
            for file in sorted(kept, key=lambda file: file.stat().st_mtime)[: MOST_KEPT // 2]:
                file.unlink(missing_ok=True)
        partial.write_bytes(b"%08x\n%s" % (zlib.crc32(text.encode()), text.encode()))
        partial.replace(path)
