"""A process with the pretend device: `python -m accelerator.process`, with [function, arguments] as JSON on stdin.

The last line of stdout is the function's result as JSON.
"""

import importlib
import json
import sys

from accelerator import device

if __name__ == "__main__":
    job, arguments = json.load(sys.stdin)
    device.install()
    module, _, function = job.rpartition(".")
    print(json.dumps(getattr(importlib.import_module(module), function)(*arguments)))
