"""A process with the pretend device, and its library, which is compiled once for each installed torch."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import CACHE, OUTSIDE, TESTS, inherit

SOURCE = Path(__file__).with_name("device.cpp")


@pytest.fixture(scope="session")
def library() -> Path:
    """Return the path of the compiled device.cpp."""
    if sys.platform != "linux" or not shutil.which("g++"):
        pytest.skip("a pretend device needs Linux and g++")
    torch = importlib.util.find_spec("torch")
    assert torch and torch.origin
    # the library looks for torch's libraries where they lay when it was linked
    facts = "\0".join([importlib.metadata.version("torch"), torch.origin, sys.version])
    text = SOURCE.read_bytes() + facts.encode()
    path = CACHE.with_name("accelerator-tests") / f"{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not path.exists():
        compile_library(path)
    return path


def compile_library(path: Path) -> None:
    """Compile device.cpp against this environment's torch."""
    import torch

    root, part = Path(torch.__file__).parent, path.with_suffix(f".{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    options = ["-std=c++20", "-O1", "-shared", "-fPIC", abi, f"-I{root / 'include'}", f"-L{root / 'lib'}"]
    libraries = [f"-Wl,-rpath,{root / 'lib'}", "-lc10", "-ltorch_cpu"]
    subprocess.run(["g++", *options, str(SOURCE), "-o", str(part), *libraries], check=True)
    part.replace(path)


@pytest.fixture(scope="session")
def on_device(library: Path) -> Callable[..., Any]:
    """Call a function, named as `module.function`, in a process with the pretend device; JSON goes in and out."""

    def call(job: str, *arguments: Any) -> Any:
        paths = os.pathsep.join([str(TESTS), str(OUTSIDE)])
        done = subprocess.run(
            [sys.executable, "-m", "accelerator.process"],
            env=inherit(LD_PRELOAD=str(library), PYTHONPATH=paths),
            input=json.dumps([job, arguments]),
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return call
