"""Where MLflow is, and how to speak to it: without waiting long, and without leaving traces in this process."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from suite.contract import UserError

Client = Any  # mlflow.MlflowClient, and mlflow.entities.Run: MLflow takes a second to import, so types name it nowhere
Run = Any
DEFAULT = "sqlite:///mlflow.db"
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
# MLflow reports its use to its makers, announces every table it creates and every run that ends; a benchmark does not.
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
# Left alone, MLflow asks a dead server for minutes (7 retries, 120 s each). The first question finds out quickly.
KNOCK = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
WORK = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "30", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


def address(uri: str | None = None) -> str:
    """The tracking URI: the one given, MLFLOW_TRACKING_URI, or a database in the current directory."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT


def how_to_open(uri: str | None = None) -> str:
    """What to type, or where to point a browser, to see the runs."""
    where = _public(address(uri))
    return where if where.startswith("http") else f"mlflow ui --backend-store-uri {shlex.quote(where)}"


def _public(where: str) -> str:
    """An address without its password."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", where)


@contextmanager
def connected(uri: str | None = None) -> Iterator[Client]:
    """A client that has been answered once; environment variables are as before afterwards.

    Raises:
        UserError: MLflow does not answer, or refuses something inside the `with` block.
    """
    where = address(uri)
    with _environment(QUIET):
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            if where.startswith(DATABASES):
                _try_database(where)
            client = MlflowClient(tracking_uri=where)
            with _environment(KNOCK):
                client.search_experiments(max_results=1)
            with _environment(WORK):
                yield client
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
            raise UserError(
                f"MLflow at {_public(where)}: {_reason(error)}. Runs are safe in their directories: "
                "`suite sync` sends them when it answers, `suite sync --uri URI` to another"
            ) from error


def search(client: Client, experiments: list[str], condition: str) -> Iterator[Run]:
    """Every run in these experiments (by id) that meets the condition."""
    token = None
    while experiments:
        page = client.search_runs(experiments, condition, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def experiment(client: Client, name: str) -> str:
    """The id of the experiment called `name`, made where there is none."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found:
        return found.experiment_id
    try:
        return client.create_experiment(name)
    except MlflowException:  # another process may have made it in between
        made = client.get_experiment_by_name(name)
        if not made:
            raise
        return made.experiment_id


def _try_database(where: str) -> None:
    """Open and close it: MLflow itself would try for 100 seconds before it said that it cannot."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(where)
    engine.connect().close()
    engine.dispose()


def _reason(error: BaseException) -> str:
    """What lies at the bottom of an error where that is the system's word, its first sentence otherwise."""
    below: BaseException | None = error
    system = None
    while below:
        system = below if isinstance(below, OSError) else system
        below = below.__cause__ or below.__context__
    return str(system or error).strip().partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables that the user has not set, for a while."""
    mine = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)
