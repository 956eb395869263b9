"""GPUs of this machine, and why a run does not use them."""

import importlib
import os
import shutil
import subprocess

from suite.settings.run import Run


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs that a run could use here, from the driver and CUDA_VISIBLE_DEVICES."""
    if shutil.which("nvidia-smi") is None:
        return 0
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    present = sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return present if named is None else min(present, len([name for name in named.split(",") if name.strip()]))


def explain_cpu(run: Run) -> str | None:
    """Return why `device=auto` takes the CPU of a machine that has a GPU; None if it does not."""
    if run.device != "auto" or not count_gpus():
        return None
    reason = importlib.import_module(f"suite.engine.{run.backend}_device").explain_cpu()
    return f"device=auto trains on the CPU, although this machine has a GPU: {reason}" if reason else None
