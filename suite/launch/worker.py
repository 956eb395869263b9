"""One rank: `python -m suite.launch.worker DIRECTORY RANKS ADDRESS RANK PIPE [brief]`.

`suite.launch.local_ranks` starts it. The configuration is the first line of standard input, as JSON. The launcher keeps
that pipe open until it ends. PIPE is the descriptor of a second pipe, to which this rank writes its error; the launcher
prints each error once for all ranks.
"""

import json
import os
import signal
import sys
import traceback
from functools import partial
from pathlib import Path

from suite import load, orphan, output
from suite.contract import UserError
from suite.launch import execution, external
from suite.launch.job import Job, make_task
from suite.record import record
from suite.settings.run import Run, read_run


def main(arguments: list[str]) -> int:
    """Join the other ranks, if there are any, and run; return the exit code."""
    directory, ranks, address, rank, error_pipe, *brief = arguments
    processes = int(ranks)
    load.search_working_directory()  # also for the settings of members there
    try:
        run = read_run(json.loads(sys.stdin.readline()))
        orphan.end_with_pipe(sys.stdin.fileno())
        header = record.read_header(Path(directory))
        threads = header.environment.threads
        execution.prepare_backend(run, processes, threads)
        backend = None
        if processes > 1 and isinstance(run, Run):  # one rank: a run of a sweep
            backend = load.load_half("suite.engine.ranks", run.backend)
            connect = partial(backend.connect, int(rank), processes, address, run.launch.deadline, run.device)
            external.connect_ranks(connect, processes, address)
        job = Job(run, make_task(run), processes, threads, header, Path(directory))
        code = execution.execute_job(job, rank=int(rank), brief=bool(brief))
        if backend and code != 1:
            backend.disconnect()
        return code
    except UserError as error:
        os.write(int(error_pipe), json.dumps({"rank": int(rank), "error": str(error)}).encode() + b"\n")
        return 2
    except Exception:  # not raised, to skip the frameworks' clean-up: see below
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the run handles it: no traceback of what is being loaded
    with output.drop_unwritable():
        code = main(sys.argv[1:])
    # Skip the frameworks' clean-up: in it, a rank that failed would wait for ranks that wait for it, and gloo's threads
    # sometimes abort.
    os._exit(code)
