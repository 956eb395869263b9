"""One rank of a run: `python -m suite.worker CONFIG DIRECTORY RANKS ADDRESS RANK`, started by `suite.launch`."""

import json
import os
import sys
import traceback
from pathlib import Path

from suite import load, run
from suite.contract import UserError


def main(arguments: list[str]) -> int:
    """Join the other ranks, if there are any, and run; returns the exit code."""
    config_path, directory, ranks, address, rank = arguments
    config = json.loads(Path(config_path).read_text())
    header = json.loads((Path(directory) / "header.json").read_text())
    alone = int(ranks) == 1  # a run of a sweep
    try:
        run.prepare_backend(config)
        backend = None if alone else load.half("suite.backend.ranks", config["backend"])
        if backend:
            backend.connect(int(rank), int(ranks), address, config["launch"]["deadline"])
        code = run.execute(config, run.make_task(config), Path(directory), header, rank=int(rank))
        if backend and code != 1:
            backend.disconnect()
        return code
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)
        return 2
    except Exception:  # what is thrown on would end in the frameworks' clean-up, too: see below
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # without the frameworks' own clean-up: a rank that failed would wait in it for ranks that wait for it, and gloo's
    # threads abort in it now and then
    os._exit(code)
