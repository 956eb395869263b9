"""Errors for mistakes of the user, and a hint for an unknown name."""

import difflib
from collections.abc import Iterable

MOST_NAMES = 30  # in a message about an unknown name


class UserError(Exception):
    """An error that the user can correct. The message says what is wrong, where, and what to do; exit code 2."""


class MissingError(UserError):
    """Something is not installed, or not in its folder. A plan lists it, and goes on."""


def suggest_names(name: str, names: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest names, or all of them, up to MOST_NAMES."""
    names = sorted(set(names))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"there are {', '.join(names[:MOST_NAMES]) or 'none'}{', …' if len(names) > MOST_NAMES else ''}"
