"""Error for mistakes of the user."""


class UserError(Exception):
    """An error that the user can correct. The message says what is wrong, where, and what to do; exit code 2."""
