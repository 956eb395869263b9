"""Which parameters have a variance, and how per-sample gradients are cut to fit. Shared by torch and jax."""

from collections.abc import Mapping

from suite.contract import Layer, Plan, UserError
from suite.optimizers._plan import read_layers
from suite.optimizers.vogn import Settings

# Elements of per-sample gradients made at a time. On a CPU they should stay in its cache: (128, 1152) for each of 64
# samples took jax 46 ms at once and 3 ms one by one. Elsewhere fewer, larger parts are faster.
CACHED, HELD = 2**18, 2**26


class VOGNPlan(Plan):
    """Squares are gathered at every step.

    Args:
        layers: of the model, by module name.
        shapes: of its parameters, by name.

    Attributes:
        layers: as given.
        covered: parameters whose per-sample gradients are known, in the model's order.
        drawn: those of them that have noise and a prior: all but batch normalisation's.
        rest: the others, which follow Adam.
    """

    def __init__(self, layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]]):
        self.layers = read_layers(layers, shapes)
        normal = {name for layer in layers.values() if layer.kind == "batchnorm" for name in layer.parameters}
        known = {name for layer in layers.values() for name in layer.parameters}
        self.covered = [name for name in shapes if name in known]
        self.drawn = [name for name in self.covered if name not in normal]
        self.rest = [name for name in shapes if name not in known]

    def phase(self, step: int) -> tuple[str, ...]:
        """Every step's backward pass is observed."""
        return ("statistics",)


def check_samples(samples: int) -> None:
    """Check the number of samples of the training split.

    Raises:
        UserError: there are none.
    """
    if samples < 1:
        raise UserError(f"VOGN(samples={samples}): set it to the number of samples of the training split")


def check(settings: Settings) -> None:
    """Reject settings with which a variance or an average has no meaning.

    Raises:
        UserError: naming them.
    """
    least, most = sorted((settings.tempering, settings.tempering_start))
    if least <= 0 or most * settings.beta2 > 1:
        raise UserError(
            f"optimizer.tempering={settings.tempering} (from {settings.tempering_start}), "
            f"optimizer.beta2={settings.beta2}: both temperings must be above 0, and tempering × beta2, what s forgets "
            "in a step, at most 1"
        )
    if settings.prior_precision <= 0 and settings.damping <= 0:
        raise UserError("optimizer.prior_precision=0 and damping=0: a weight without gradient would have no variance")


def find_limit(device: str) -> int:
    """Return how many elements one array should have at most that is made in passing."""
    return CACHED if device == "cpu" else HELD


def count_parts(samples: int, size: int, device: str) -> int:
    """Into how many equal parts samples are cut so that one's per-sample gradients, `size` numbers each, fit."""
    largest = max(1, find_limit(device) // size)  # samples in one part
    return next(count for count in range(1, samples + 1) if samples % count == 0 and samples // count <= largest)


def make(layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]], settings: Settings) -> VOGNPlan:
    """Return the plan of a run, whose settings are checked together; see `check` and `VOGNPlan`."""
    check(settings)
    return VOGNPlan(layers, shapes)
