"""Addresses of tracking servers: which one is used, and how it is printed without its secrets."""

import os
import shlex
from collections.abc import Iterator
from urllib.parse import SplitResult, quote, unquote, urlsplit

from suite.contract import UserError

DEFAULT = "sqlite:///mlflow.db"
HIDDEN = "***"
TRAINING = (
    "/#/experiments?workflowType=machine_learning"  # the page of experiments; MLflow 3's default is generative AI
)


def find_address(uri: str | None = None) -> str:
    """Find the tracking URI: `uri`, else MLFLOW_TRACKING_URI, else a database in the current directory."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT


def how_to_open(uri: str | None = None) -> str:
    """Return the command to run, or the address to open in a browser, to see the runs."""
    where = show_address(find_address(uri))
    if where.startswith("http"):
        return f"{where}{TRAINING}"
    return f"mlflow ui --backend-store-uri {shlex.quote(where)}, then http://127.0.0.1:5000{TRAINING}"


def check_address(where: str) -> None:
    """Check that an address can be read in one way only.

    Raises:
        UserError: if it is no URI, or a part of a password may be taken for a host or path.
    """
    if _split(where) is None:
        raise UserError(
            f"MLflow at {show_address(where)}: no address that can be read in one way only; in user name, password and "
            "parameters, write %40, %2F, %3F and %23 for @, /, ? and #"
        )


def show_address(where: str) -> str:
    """Remove what may be secret from an address: user, password, fragment and the values of parameters."""
    parts = _split(where)
    if parts is None:
        scheme, separator, _ = where.partition("://")
        return f"{scheme}{separator}{HIDDEN}" if separator else HIDDEN
    _, at, host = parts.netloc.rpartition("@")
    names = (pair.partition("=")[:2] for pair in parts.query.split("&") if pair)
    query = "&".join(f"{name}={HIDDEN}" if equals else HIDDEN for name, equals in names)
    if not host:  # a file; `geturl` would drop the slashes of sqlite:///
        return where.partition("#")[0].partition("?")[0] + (f"?{query}" if query else "")
    return parts._replace(netloc=f"{HIDDEN}@{host}" if at else host, query=query, fragment="").geturl()


def hide_secrets(text: str, where: str) -> str:
    """Return a text, such as a library's error, without the secrets of an address."""
    parts = _split(where)
    if parts is None:
        return HIDDEN
    text = text.replace(where, show_address(where))
    for secret in sorted(_list_secrets(parts), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _list_secrets(parts: SplitResult) -> set[str]:
    """User, password, fragment and values of parameters: as typed, decoded, and in the forms that libraries print."""

    def vary() -> Iterator[str]:
        user = parts.netloc.rpartition("@")[0]
        values = [value or name for name, _, value in (pair.partition("=") for pair in parts.query.split("&"))]
        for typed in (user, *user.split(":", 1), parts.fragment, *values):
            plain = unquote(typed)
            yield from (typed, plain, quote(plain), quote(plain, safe=""), repr(plain)[1:-1])

    return set(vary()) - {""}


def _split(where: str) -> SplitResult | None:
    """Split an address; None if it is no URI, or an @ stands behind the host: programs disagree on such passwords."""
    try:
        parts = urlsplit(where)
        _ = parts.port  # raises for a host with a colon, which is a user with a password
    except ValueError:
        return None
    is_file = not parts.netloc and parts.path.startswith(("/", "."))
    behind = (parts.query, parts.fragment) if is_file else (parts.path, parts.query, parts.fragment)
    return None if any("@" in part for part in behind) else parts
