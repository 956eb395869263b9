"""Describes a run's environment (hardware, versions, commit), and computes the fingerprint that decides on reuse."""

import functools
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import suite
from suite.record.facts import Environment

RESULTS = (":!results/runs", ":!results/adaprec", ":!results/*.csv")  # results in the checkout do not make it dirty
COVERED = ("source", "packages", "python", "cpu")  # facts that the fingerprint covers, besides device and threads
DRIVER = Path("/proc/driver/nvidia")
CPUS = Path("/proc/cpuinfo")
CPU_KEYS = ("cpu family", "model", "cpu implementer", "cpu part")  # of x86 and of Arm
VECTORS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve")  # instructions that decide on the kernels
LIBRARIES = ("nvidia-", "jax-cuda")  # names of the packages with CUDA, cuDNN and NCCL begin so
OPTIONAL = ("gpus", "cpu_kind", "data", "members", "initial_weights", "decisions")
FRAMEWORKS = ("torch", "jax", "jaxlib", "optax", "numpy", "hydra-core", "mlflow")


def capture_environment() -> dict[str, Any]:
    """Collect facts about this machine and this checkout; no framework is imported."""
    import psutil

    commit, dirty = read_revision()
    return {
        "suite": suite.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": _cpu(),
        "cpu_kind": read_cpu_kind(),
        "cores": os.cpu_count(),
        "gpus": _gpus(),
        "gpu_software": read_gpu_software(),
        "memory_bytes": psutil.virtual_memory().total,
        "frameworks": read_versions(),
        "packages": hash_packages(),
        "source": hash_source(),
        "commit": commit,
        "dirty": dirty,
        "environment_variables": {
            name: os.environ[name]
            for name in ("XLA_FLAGS", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
            if name in os.environ
        },
    }


def describe_machine() -> str:
    """This machine's processor, number of cores and GPUs, in words; times are compared only where these are equal."""
    return ", ".join([_describe_cpu(_cpu(), read_cpu_kind()), f"{os.cpu_count()} cores", *_gpus()])


def describe_environment(environment: Environment) -> str:
    """Return the same of the machine of a result."""
    return ", ".join([describe_cpu(environment), f"{environment.cores} cores", *map(str, environment.gpus or ())])


def describe_cpu(environment: Environment) -> str:
    """Return the processor of a result's machine in words: its name, and its kind, which older results lack."""
    return _describe_cpu(environment.cpu, environment.cpu_kind)


def _describe_cpu(name: str, kind: str | None) -> str:
    return f"{name} ({kind})" if kind else name


def compute_fingerprint(environment: Mapping[str, Any], *, device: str, threads: int) -> str:
    """A hash that is equal for two runs if one result can replace the other.

    It covers source, packages, Python, processor, GPUs, device, threads, data, initial weights, decisions and members
    outside the suite.

    Args:
        environment: as `capture` returns it, with those of `OPTIONAL` that the run has.
        device: the setting `device`.
        threads: of one process.

    Returns:
        16 hexadecimal digits.
    """
    facts = [environment[key] for key in COVERED] + [device, threads]
    # gpus: device=auto uses a GPU if there is one. Results of older versions lack data and members
    facts += [environment[key] for key in OPTIONAL if environment.get(key)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def list_changes(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """List the differences between two environments that change the fingerprint, one entry in words for each fact.

    Args:
        there: the earlier environment.
        here: the present one.
    """
    names = (*COVERED, "threads", *OPTIONAL)
    return [_described(name, there, here) for name in names if there.get(name) != here.get(name)]


def _described(name: str, there: dict[str, Any], here: dict[str, Any]) -> str:
    """How one fact differs, in words."""
    before, after = there.get(name), here.get(name)
    if name == "source":
        commits = f" ({there['commit'][:9]} to {here['commit'][:9]})" if there["commit"] and here["commit"] else ""
        return f"the suite's code{commits if there['commit'] != here['commit'] else ''}"
    if name == "cpu_kind":
        return f"the kind of processor ({before} to {after})"
    if name == "packages":
        pairs = [(key, there["frameworks"].get(key), here["frameworks"].get(key)) for key in FRAMEWORKS]
        versions = [f"{key} {old} to {new}" for key, old, new in pairs if old != new]
        return f"installed packages ({', '.join(versions) or 'not the frameworks'})"
    if name == "members":
        changed = sorted(
            key for key in {**(before or {}), **(after or {})} if (before or {}).get(key) != (after or {}).get(key)
        )
        return f"the code of {', '.join(changed)}"
    files = {"data": "the data", "initial_weights": "the weights of init_from", "decisions": "the file of decisions"}
    if name in files:
        return files[name]
    return f"{name} ({before} to {after})"


def hash_source() -> str:
    """Return the sha256 (16 digits) of all files of the installed suite that can change a number, with its members."""
    digest = hashlib.sha256()
    for name in ("suite", "suite.tasks", "suite.optimizers", "suite.comm", "suite.conf"):
        root = Path(next(iter(importlib.import_module(name).__path__)))
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".yaml", ".json"):
                digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def hash_packages() -> str:
    """Return the sha256 (16 digits) of the names and versions of all installed packages."""
    versions = sorted({f"{d.metadata['Name']}=={d.version}".lower() for d in importlib.metadata.distributions()})
    return hashlib.sha256("\n".join(versions).encode()).hexdigest()[:16]


def read_revision() -> tuple[str | None, bool | None]:
    """Read the checkout's commit, and whether files other than results have changed; None outside a checkout."""
    root = Path(suite.__file__).parent.parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout

    try:
        if not git("ls-files", "pyproject.toml").strip():
            return None, None
        return git("rev-parse", "HEAD").strip(), bool(git("status", "--porcelain", "--", ".", *RESULTS).strip())
    except (OSError, subprocess.CalledProcessError):
        return None, None


def read_versions(names: Iterable[str] = FRAMEWORKS) -> dict[str, str]:
    """Read the versions of the packages that are installed, by name."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def read_gpu_software() -> dict[str, str]:
    """Read the versions of the GPU's driver and of the packages with CUDA, cuDNN and NCCL; {} without a GPU."""
    if not _gpus():
        return {}
    text = (DRIVER / "version").read_text() if (DRIVER / "version").exists() else ""
    driver = re.search(r"\d+\.\d+(\.\d+)*", text)
    names = sorted(d.metadata["Name"].lower() for d in importlib.metadata.distributions())
    libraries = read_versions(name for name in names if name.startswith(LIBRARIES))
    return ({"driver": driver[0]} if driver else {}) | libraries


def _gpus() -> list[str]:
    """Return the models of the GPUs that the driver lists; none if CUDA_VISIBLE_DEVICES is empty."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return []
    texts = [path.read_text() for path in sorted((DRIVER / "gpus").glob("*/information"))]
    return [line.partition(":")[2].strip() for text in texts for line in text.splitlines() if line.startswith("Model:")]


def _cpu() -> str:
    return _read_cpu_facts().get("model name") or platform.processor() or platform.machine()


def read_cpu_kind() -> str:
    """Read the processor's family, model and vector instructions; "" where Linux does not list them.

    Processors of one name may differ in these, as those of cloud machines do, and then round differently.
    """
    facts = _read_cpu_facts()
    flags = (facts.get("flags") or facts.get("features", "")).split()
    numbers = [f"{key.removeprefix('cpu ')} {facts[key]}" for key in CPU_KEYS if key in facts]
    return ", ".join(numbers + [name for name in VECTORS if name in flags])


def _read_cpu_facts() -> dict[str, str]:
    """Return what Linux says about the first processor; {} on other systems."""
    first = CPUS.read_text().partition("\n\n")[0] if CPUS.exists() else ""
    pairs = [line.partition(":")[::2] for line in first.splitlines()]
    return {name.strip().lower(): value.strip() for name, value in pairs}
