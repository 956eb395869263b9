"""Addresses of tracking servers are printed without their secrets."""

import pytest

from suite.contract import UserError
from suite.track import address, server

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("./runs@work", "./runs@work"),
        ("databricks://profile", "databricks://profile"),
        ("http://[::1]:5000/a", "http://[::1]:5000/a"),
        (f"http://me:{SECRET}@host:5000/a", "http://***@host:5000/a"),
        (f"https://{SECRET}@host", "https://***@host"),
        (f"https://{SECRET}:x@host", "https://***@host"),
        (f"https://me:a@{SECRET}@host", "https://***@host"),
        (f"https://me:%2F{SECRET}%40@host", "https://***@host"),
        (f"https://host/a?token={SECRET}&sslmode=require", "https://host/a?token=***&sslmode=***"),
        (f"mssql+pyodbc://host/db?password={SECRET}", "mssql+pyodbc://host/db?password=***"),
        (f"sqlite:///a.db?key={SECRET}", "sqlite:///a.db?key=***"),
        (f"https://host?{SECRET}", "https://host?***"),
        (f"https://host/#{SECRET}", "https://host/"),
        (f"postgresql://me:se/{SECRET}@host/db", "postgresql://***"),
        (f"postgresql://me:{SECRET}/a@host/db", "postgresql://***"),
        (f"postgresql://{SECRET}/a@host/db", "postgresql://***"),
        (f"postgresql://me:{SECRET}?a@host/db", "postgresql://***"),
        (f"postgresql://me:{SECRET}#a@host/db", "postgresql://***"),
        (f"http://me:{SECRET}/host", "http://***"),
        (f"me:{SECRET}@host:5000", "***"),
        (f"http://[me:{SECRET}@host", "http://***"),
    ],
)
def test_an_address_is_shown_without_its_secrets(where: str, shown: str) -> None:
    assert address.show_address(where) == shown
    assert SECRET not in address.how_to_open(where)


@pytest.mark.parametrize(
    "text",
    [
        "cannot open https://me:p%2Fs3cret@host/a?token=t0ken%2B1",
        "no password 'p/s3cret' of user me",
        "url: /a/api?token=t0ken+1 (and p%2Fs3cret)",
    ],
)
def test_an_error_is_shown_without_the_secrets_of_the_address(text: str) -> None:
    shown = address.hide_secrets(text, "https://me:p%2Fs3cret@host/a?token=t0ken%2B1")
    assert "s3cret" not in shown and "t0ken" not in shown and "***" in shown


@pytest.mark.parametrize("where", [f"http://me:{SECRET}/a@host", f"postgresql://me:{SECRET}/@nowhere/db"])
def test_an_address_that_can_be_read_in_two_ways_is_rejected(where: str) -> None:
    with pytest.raises(UserError, match=r"\*\*\*: no address .* write %40, %2F") as error, server.connect_client(where):
        pass
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    "where", [f"nonsense://me:{SECRET}@host/a?token={SECRET}", f"postgresql+none://me:{SECRET}@host/db"]
)
def test_every_error_is_one_line_without_secrets(where: str) -> None:
    with pytest.raises(UserError, match="suite sync --uri URI") as error, server.connect_client(where):
        pass
    assert "\n" not in str(error.value) and SECRET not in str(error.value)


def test_the_address_is_the_argument_or_the_variable_or_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert address.find_address() == "sqlite:///mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking")
    assert address.find_address() == "http://tracking"
    assert address.find_address("http://other") == "http://other"
