"""FRNN's sizes: every parameter's shape, and the layers that a curvature method can treat, without a framework."""

from dataclasses import dataclass

from suite.contract import Layer, Spec, UserError


@dataclass(frozen=True)
class Architecture:
    """Convolutions along the radius of the profiles, two dense layers, two LSTMs over time, one number a step.

    A convolution of width k along the radius is a linear map of k neighbouring points, and is held as such: weights
    are (filters, k · channels), the point nearest the axis first. The number of parameters is a convolution's.

    Attributes:
        signals: numbers with one value a time step (0D).
        profiles: radial profiles (1D); 0 in the variant `0d`, which has neither convolutions nor dense layers.
        radii: points of each profile.
        filters: of the first convolution; each further one has half as many.
        conv_layers: pairs of a width-`kernel_size` and a width-1 convolution, each pair followed by max-pooling.
        kernel_size: width of the convolutions, in points.
        pool: points that max-pooling takes together; a remainder is dropped.
        dense: units of the first dense layer; the second has a quarter.
        hidden: units of an LSTM.
        lstm_layers: LSTMs on top of one another.
    """

    signals: int
    profiles: int
    radii: int
    filters: int
    conv_layers: int
    kernel_size: int
    pool: int
    dense: int
    hidden: int
    lstm_layers: int

    def __post_init__(self) -> None:
        if self.profiles and self.points < 1:
            raise UserError(
                f"task.conv_layers={self.conv_layers}: {self.radii} radial points are too few; type a smaller number"
            )

    @property
    def points(self) -> int:
        """Radial points that are left after the last pooling."""
        points = self.radii
        for _ in range(self.conv_layers):
            points = (points - self.kernel_size + 1) // self.pool
        return points

    def linears(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of every linear layer with a bias, by name, in the model's order.

        An LSTM's four gates (input, forget, cell, output: torch's order) lie side by side in `input`; their recurrent
        half is not among them.
        """
        found, width = {}, self.signals
        if self.profiles:
            channels = self.profiles
            for layer in range(self.conv_layers):
                filters = self.filters // 2**layer
                found[f"conv.{2 * layer}"] = self.kernel_size * channels, filters
                found[f"conv.{2 * layer + 1}"] = filters, filters
                channels = filters
            found["dense.0"] = channels * self.points, self.dense
            found["dense.1"] = self.dense, self.dense // 4
            width += self.dense // 4
        for layer in range(self.lstm_layers):
            found[f"lstm.{layer}.input"] = width, 4 * self.hidden
            width = self.hidden
        return found | {"output": (width, 1)}

    def shapes(self) -> dict[str, Spec]:
        """Every parameter. Keras's initial values: Glorot, and 1 for the bias of the forget gates (see `bias`)."""
        found = {}
        for name, (inputs, outputs) in self.linears().items():
            found[f"{name}.weight"] = Spec((outputs, inputs), "glorot_uniform")
            found[f"{name}.bias"] = Spec((outputs,), "zeros")
            if name.startswith("lstm"):
                found[name.replace("input", "recurrent.weight")] = Spec((outputs, self.hidden), "glorot_uniform")
        return found

    def layers(self) -> dict[str, Layer]:
        """All linear layers except the recurrent ones, which run once a time step, inside a scan."""
        return {name: Layer("linear", (f"{name}.weight", f"{name}.bias")) for name in self.linears()}
