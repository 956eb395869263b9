"""Error for a lost rank, with the same words in both frameworks."""

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class PeerLost(RuntimeError):
    """Another rank of the pipeline ended, or did not answer before the deadline."""


def guard_exchange(peer: str, exchange: Callable[[], Result]) -> Result:
    """Return the result of an exchange with a peer.

    Args:
        peer: the peer and what is exchanged, in words.
        exchange: calls the framework.

    Raises:
        PeerLost: with these words and the framework's reason. jax raises ValueError for gloo's errors.
    """
    try:
        return exchange()
    except (RuntimeError, ValueError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise PeerLost(f"lost {peer}: {reason.strip()}") from error
