"""Where a run happened: hardware, versions, commit; and the fingerprint that decides whether a result may be reused."""

import functools
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import suite

RESULTS = (":!results/runs", ":!results/adaprec", ":!results/*.csv")  # what runs leave behind makes no run another
FRAMEWORKS = ("torch", "jax", "jaxlib", "optax", "numpy", "hydra-core", "mlflow")


def capture() -> dict[str, Any]:
    """Facts about this machine and this checkout; no framework is imported."""
    import psutil

    commit, dirty = revision()
    return {
        "suite": suite.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpus": _gpus(),
        "memory_bytes": psutil.virtual_memory().total,
        "frameworks": _versions(),
        "packages": packages(),
        "source": source(),
        "commit": commit,
        "dirty": dirty,
        "environment_variables": {
            name: os.environ[name]
            for name in ("XLA_FLAGS", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
            if name in os.environ
        },
    }


def fingerprint(environment: dict[str, Any], *, device: str, threads: int) -> str:
    """Equal for two runs whose numbers may stand for each other: source, packages, framework, device, threads."""
    keys = ("source", "packages", "python", "cpu")
    facts = [environment[key] for key in keys] + [device, threads]
    facts += [gpus] if (gpus := environment.get("gpus")) else []  # device=auto takes one where there is one
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def source() -> str:
    """sha256 over every file of the installed suite that can change a number, members included."""
    digest = hashlib.sha256()
    for name in ("suite", "suite.tasks", "suite.optimizers", "suite.comm", "suite.conf"):
        root = Path(next(iter(importlib.import_module(name).__path__)))
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".yaml", ".json"):
                digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def packages() -> str:
    """sha256 over the names and versions of everything installed."""
    found = sorted({f"{d.metadata['Name']}=={d.version}".lower() for d in importlib.metadata.distributions()})
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def revision() -> tuple[str | None, bool | None]:
    """The checkout's commit and whether it has uncommitted changes, results apart; (None, None) outside a checkout."""
    root = Path(suite.__file__).parent.parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout

    try:
        if not git("ls-files", "pyproject.toml").strip():
            return None, None
        return git("rev-parse", "HEAD").strip(), bool(git("status", "--porcelain", "--", ".", *RESULTS).strip())
    except (OSError, subprocess.CalledProcessError):
        return None, None


def _versions() -> dict[str, str]:
    found = {}
    for name in FRAMEWORKS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _gpus() -> list[str]:
    """Models of the graphics processors that the driver names and the environment does not hide."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return []
    found = [path.read_text() for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    return [line.partition(":")[2].strip() for text in found for line in text.splitlines() if line.startswith("Model:")]


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if sys.platform == "linux" and info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
