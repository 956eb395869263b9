"""Connects to MLflow, with short timeouts and without lasting changes to this process's environment."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from suite.contract import UserError

Client = (
    Any  # mlflow.MlflowClient and mlflow.entities.Run; types do not name them, because importing MLflow takes a second
)
Run = Any
DEFAULT = "sqlite:///mlflow.db"
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
# By default, MLflow sends telemetry, and prints every table that it creates and every run that ends.
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
# By default, MLflow tries to reach a dead server for minutes (7 retries, 120 s each). The first request must fail fast.
FIRST_REQUEST = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
WORK = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "30", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
TRAINING = (
    "/#/experiments?workflowType=machine_learning"  # the page of experiments; MLflow 3's default is generative AI
)
# The view in which MLflow's pages open an experiment. Version 3.17 reads the address instead (TRAINING).
KIND = {"mlflow.experimentKind": "custom_model_development"}


def find_address(uri: str | None = None) -> str:
    """Find the tracking URI: `uri`, else MLFLOW_TRACKING_URI, else a database in the current directory."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT


def how_to_open(uri: str | None = None) -> str:
    """Return the command to run, or the address to open in a browser, to see the runs."""
    where = _public(find_address(uri))
    if where.startswith("http"):
        return f"{where}{TRAINING}"
    return f"mlflow ui --backend-store-uri {shlex.quote(where)}, then http://127.0.0.1:5000{TRAINING}"


def _public(where: str) -> str:
    """An address without its password."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", where)


@contextmanager
def connect_client(uri: str | None = None) -> Iterator[Client]:
    """Connect to MLflow and send a first request; restore the environment variables afterwards.

    Args:
        uri: of the tracking server; see `address`.

    Yields:
        The client.

    Raises:
        UserError: if MLflow does not answer, or rejects a request inside the `with` block.
    """
    where = find_address(uri)
    with _environment(QUIET):
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            if where.startswith(DATABASES):
                _try_database(where)
            client = MlflowClient(tracking_uri=where)
            with _environment(FIRST_REQUEST):
                client.search_experiments(max_results=1)
            with _environment(WORK):
                yield client
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
            raise UserError(
                f"MLflow at {_public(where)}: {_reason(error)}. The runs remain in their directories. To "
                "send them later, run `suite sync`; to send them to another server, `suite sync --uri URI`"
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


def find_experiment(client: Client, name: str) -> str:
    """Find the id of the experiment called `name`, which is created if it does not exist."""
    from mlflow.exceptions import MlflowException

    existing = client.get_experiment_by_name(name)
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
