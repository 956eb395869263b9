"""Several processes that send runs to MLflow at the same time."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from stored import query

from suite.track import server

SHORT = ["task=autoencoder", "max_steps=1", "eval_every=1", "threads=1"]


@pytest.fixture(params=["file", "server"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An address and its database. No database exists at the address of a file; the server makes its own."""
    database = tmp_path / "mlflow.db"
    if request.param == "file":
        yield f"sqlite:///{database}", database
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{database}", "--default-artifact-root", str(tmp_path / "artifacts")]
    variables = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # which starts ten processes
    process = subprocess.Popen(command, cwd=tmp_path, env=variables, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        await_server(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}", database
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def await_server(address: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("mlflow server has ended")


def start(words: list[str], uri: str, folder: Path) -> subprocess.Popen[str]:
    """Start a command of the suite in a folder."""
    variables = os.environ | {"PYTHONSAFEPATH": "1", "MLFLOW_TRACKING_URI": uri}
    command = [sys.executable, "-m", "suite", *words]
    return subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Wait for commands that must succeed without an error message; return what they printed."""
    outputs = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert (process.returncode, "Traceback" in errors, "suite: " in errors) == (0, False, False), errors
    return [output for output, _ in outputs]


@pytest.mark.slow
def test_four_first_runs_and_four_syncs_at_once(fresh: tuple[str, Path], tmp_path: Path) -> None:
    uri, database = fresh
    finish([start([*SHORT, "track=mlflow", f"seed={seed}"], uri, tmp_path) for seed in range(4)])
    finish([start(["sync"], uri, tmp_path) for _ in range(4)])
    (sent,) = query(database, "select count(*), count(distinct value) from tags where key = 'execution_id'")
    assert sent == (4, 4), "each run once"
    (rows,) = query(database, "select count(*), count(distinct value) from tags where key = 'row'")
    assert rows[0] == rows[1] > 5


@pytest.mark.slow
def test_four_syncs_of_one_run_make_the_database_and_send_the_run_once(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/new.db"
    finish([start([*SHORT, "track=none"], uri, tmp_path)])
    outputs = finish([start(["sync"], uri, tmp_path) for _ in range(4)])
    assert sorted("\n1 sent, 0 already" in output for output in outputs) == [False, False, False, True]
    assert query(tmp_path / "new.db", "select count(*) from tags where key = 'execution_id'") == [(1,)]


def test_a_process_killed_while_it_makes_the_tables_leaves_no_broken_database(
    tmp_path: Path,
) -> None:
    database = tmp_path / "new.db"
    killed = """
import os, signal, sys
from alembic.operations.batch import ApplyBatchImpl
from suite.track import server

def stop(self, impl):
    impl.prep_table_for_batch(self, self.table)
    self._transfer_elements_to_new_table()
    impl.create_table(self.new_table)  # and the old table is not dropped
    os.kill(os.getpid(), signal.SIGKILL)

ApplyBatchImpl._create = stop
with server.connect_client(sys.argv[1]): pass
"""
    ended = subprocess.run([sys.executable, "-c", killed, f"sqlite:///{database}"], check=False)
    assert ended.returncode == -signal.SIGKILL
    with server.connect_client(f"sqlite:///{database}") as client:
        assert [experiment.name for experiment in client.search_experiments()] == ["Default"]
