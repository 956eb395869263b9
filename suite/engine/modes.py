"""Communication modes for a user's own training loop: composed as for a run, but without a task."""

from collections.abc import Mapping
from dataclasses import dataclass

from suite.comm.settings import CommSettings
from suite.contract import Layer, Spec, UserError
from suite.settings import configure

READ = ("codec", "algorithm", "topology", "inner", "ranks_per_host", "feedback", "piece_kib", "kinds")


def compose_mode(*overrides: str, more: tuple[str, ...] = ()) -> CommSettings:
    """Return a communication mode.

    Args:
        overrides: as in a command: `comm=NAME`, and its parts, such as `comm.feedback=true`.
        more: further parts that the caller reads.

    Raises:
        UserError: an override is no setting of the exchange of gradients, or the mode needs a run of the suite.
    """
    read = (*READ, *more)
    if joined := next((one for one in overrides if not isinstance(one, str) or " comm" in one), None):
        raise UserError(f"{joined}: pass each setting as an argument, as in 'comm=fp8', 'comm.feedback=true'")
    for key in (override.lstrip("+").partition("=")[0] for override in overrides):
        group, _, part = key.partition(".")
        if group != "comm" or (part and part.partition(".")[0] not in read):
            raise UserError(f"{key}: is not read here; set comm=NAME, or comm.PART= with one of {', '.join(read)}")
    # a mode is composed as part of a run; which task that run has makes no difference
    comm = configure.resolve_training(["task=autoencoder", *overrides]).comm
    if comm.policy:
        raise UserError(f"comm={comm.name}: chooses a mode during a run, and works only there; set another mode")
    if comm.schedule.module != "suite.comm.schedules.sync":
        raise UserError(f"comm={comm.name}: decides when gradients are sent, which your loop does; set another mode")
    return comm


@dataclass(frozen=True)
class Description:
    """A model as `suite.comm.setup.make_channels` reads it of a task.

    Attributes:
        sizes: shape of each trained parameter, in the model's order.
        kinds: `linear`, `conv2d`, `embedding` or `batchnorm`, by the name of a weight.
    """

    sizes: Mapping[str, tuple[int, ...]]
    kinds: Mapping[str, str]

    def shapes(self) -> Mapping[str, Spec]:
        """Return each parameter."""
        return {name: Spec(shape, "") for name, shape in self.sizes.items()}

    def layers(self) -> Mapping[str, Layer]:
        """Return a layer for each weight that has a kind."""
        return {name: Layer(kind, (name,)) for name, kind in self.kinds.items()}
