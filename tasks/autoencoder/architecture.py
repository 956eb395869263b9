"""Deep autoencoders as a list of widths: one description from which shapes, layers and both models are made."""

import itertools
from dataclasses import dataclass

from suite.contract import Layer, Spec, UserError


@dataclass(frozen=True)
class Architecture:
    """An encoder of linear layers and its mirror image.

    ReLU follows every layer but the code's and the last one (Goldfarb et al. 2020, §5).

    Attributes:
        widths: of the layers, from the pixels to the code.
        loss: `bernoulli`, cross-entropy of the pixels, or `squared`, half their squared error; summed over an image.
        penalty: τ of ½ τ ‖θ‖², over weights and biases.
    """

    widths: tuple[int, ...]
    loss: str
    penalty: float = 0.0

    def __post_init__(self) -> None:
        if len(self.widths) < 2:
            raise UserError(f"task.widths={list(self.widths)}: must be at least two, of the pixels and of the code")

    @property
    def sequence(self) -> list[tuple[str, int, int, bool]]:
        """Name, inputs, outputs and whether ReLU follows, of every layer in order."""
        whole = (*self.widths, *self.widths[-2::-1])
        linear = {len(self.widths) - 2, len(whole) - 2}
        pairs = enumerate(itertools.pairwise(whole))
        return [(f"layers.{number}", inputs, outputs, number not in linear) for number, (inputs, outputs) in pairs]

    def shapes(self) -> dict[str, Spec]:
        """Every parameter, drawn within ±1/√inputs: torch's default, which the published code uses."""
        specs = {}
        for name, inputs, outputs, _ in self.sequence:
            specs[f"{name}.weight"] = Spec((outputs, inputs), "fan_in_uniform")
            specs[f"{name}.bias"] = Spec((outputs,), f"uniform({inputs**-0.5!r})")
        return specs

    def layers(self) -> dict[str, Layer]:
        """Every layer; all are linear."""
        return {name: Layer("linear", (f"{name}.weight", f"{name}.bias")) for name, *_ in self.sequence}

    def count_kept_bytes(self, value: int) -> float:
        """Bytes that an image leaves for the backward pass; see `suite.contract.Keeps`."""
        loss = 8 if value < 4 else value  # in bfloat16, the loss has input and output in float32
        return self.widths[0] * float(value + loss) + value * sum(outputs for _, _, outputs, _ in self.sequence[:-1])
