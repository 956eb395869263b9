"""Connects to MLflow, with short timeouts and without lasting changes to this process's environment.

Processes of one host take turns. MLflow does not lock a database while it makes its tables, and cannot find or create a
run in one request.
"""

import fcntl
import hashlib
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from suite.contract import UserError
from suite.track.address import check_address, find_address, hide_secrets, show_address
from suite.track.console import show_patience

Client = (
    Any  # mlflow.MlflowClient and mlflow.entities.Run; types do not name them, because importing MLflow takes a second
)
Run = Any
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
MOST_TAG = 8000  # characters of a tag's value (mlflow.utils.validation)
# By default, MLflow sends telemetry, prints every table that it creates and every run that ends, and logs tracebacks.
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
# By default, MLflow tries to reach a dead server for minutes (7 retries, 120 s each). The first request must fail fast.
FIRST_REQUEST = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
WORK = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "30", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
# The view in which MLflow's pages open an experiment. Version 3.17 reads the address instead (`TRAINING`).
KIND = {"mlflow.experimentKind": "custom_model_development"}


@contextmanager
def connect_client(uri: str | None = None) -> Iterator[Client]:
    """Connect to MLflow and send a first request; restore the environment variables afterwards.

    Args:
        uri: of the tracking server; see `find_address`.

    Yields:
        The client.

    Raises:
        UserError: if MLflow does not answer, or anything inside the `with` block fails.
    """
    where = find_address(uri)
    check_address(where)
    with _environment(QUIET):
        try:
            from mlflow import MlflowClient

            if where.startswith(DATABASES):
                _try_database(where)
            with _lock(where):
                if where.startswith("sqlite"):
                    _create_database(where)
                client = MlflowClient(tracking_uri=where)
                with _environment(FIRST_REQUEST):
                    client.search_experiments(max_results=1)
                with _environment(WORK):
                    yield client
        except UserError:
            raise
        except Exception as error:  # MLflow, SQLAlchemy, Alembic and the drivers of databases raise their own types
            raise UserError(
                f"MLflow at {show_address(where)}: {hide_secrets(_reason(error), where)}. The runs remain in their "
                "directories. To send them later, run `suite sync`; to send them to another server, `suite sync --uri "
                "URI`"
            ) from error


def search_runs(client: Client, experiments: list[str], condition: str) -> Iterator[Run]:
    """Every run in these experiments (by id) that satisfies the condition."""
    token = None
    while experiments:
        page = client.search_runs(experiments, condition, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def is_deleted(client: Client, name: str) -> bool:
    """Return whether there was an experiment called `name` that was deleted, and can be restored."""
    existing = client.get_experiment_by_name(name)
    return bool(existing) and existing.lifecycle_stage == "deleted"


def find_experiment(client: Client, name: str) -> str:
    """Find the id of the experiment called `name`, which is created if it does not exist.

    Raises:
        UserError: if the experiment was deleted.
    """
    from mlflow.exceptions import MlflowException

    existing = client.get_experiment_by_name(name)
    if existing and existing.lifecycle_stage == "deleted":
        where = shlex.quote(show_address(client.tracking_uri))
        raise UserError(
            f"MLflow: the experiment {name} was deleted; to restore it with all its runs, also those that were deleted "
            f"one by one, run `MLFLOW_TRACKING_URI={where} mlflow experiments restore --experiment-id "
            f"{existing.experiment_id}`, then `suite sync`, which deletes superseded runs again"
        )
    if existing:
        for key, value in KIND.items():
            if key not in existing.tags:  # made by an older version
                client.set_experiment_tag(existing.experiment_id, key, value)
        return existing.experiment_id
    try:
        return client.create_experiment(name, tags=KIND)
    except MlflowException:  # another process may have created it meanwhile
        existing = client.get_experiment_by_name(name)
        if not existing:
            raise
        return existing.experiment_id


def _try_database(where: str) -> None:
    """Open and close the database, which fails at once; MLflow would retry for 100 seconds."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(where)
    engine.connect().close()
    engine.dispose()


@contextmanager
def _lock(where: str) -> Iterator[None]:
    """Wait until no other process of this host uses the address, and keep others waiting inside the context.

    The lock of an SQLite file is beside it; that of another address is in the directory for temporary files.
    """
    path = _locate_database(where)
    name = f"suite-{os.getuid()}-{hashlib.sha256(where.encode()).hexdigest()[:16]}"
    lock = f"{path}.lock" if path else Path(tempfile.gettempdir(), f"{name}.lock")
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)
    try:
        with show_patience("waiting for another process that sends runs to MLflow", 3.0):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _locate_database(where: str) -> Path | None:
    """Return the file of an SQLite address; None for another address, or a database without a plain path."""
    from sqlalchemy import make_url

    database = make_url(where).database if where.startswith("sqlite") else None
    return Path(database) if database and not database.startswith((":", "file:")) else None


def _create_database(where: str) -> None:
    """Make the tables of a new SQLite file elsewhere, so that a process that is killed meanwhile leaves no part."""
    from mlflow import MlflowClient
    from sqlalchemy import make_url

    path = _locate_database(where)
    if path is None or path.stat().st_size:
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mlflow-") as temporary:
        complete = Path(temporary, path.name)
        MlflowClient(make_url(where).set(database=str(complete)).render_as_string()).search_experiments(max_results=1)
        complete.replace(path)


def _reason(error: BaseException) -> str:
    """Return the operating system's error that caused an error, if any; otherwise the error's first sentence."""
    cause: BaseException | None = error
    system = None
    while cause:
        system = cause if isinstance(cause, OSError) else system
        cause = cause.__cause__ or cause.__context__
    return str(system or error).strip().partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the context, except those that the user has set."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
