"""FRNN's architecture without a framework: parameter shapes, and the layers for curvature methods."""

from dataclasses import dataclass

from suite.contract import Layer, Spec, UserError


@dataclass(frozen=True)
class Architecture:
    """Convolutions along the radius of the profiles, two dense layers, LSTMs over time, and one output per step.

    A convolution of width k along the radius is stored as a linear map of k neighbouring points: its weights are
    (filters, k · channels), with the point nearest the axis first. The number of parameters is that of a convolution.

    Attributes:
        signals: numbers with one value a time step (0D).
        profiles: radial profiles (1D); 0 in the variant `0d`, which has neither convolutions nor dense layers.
        radii: points of each profile.
        filters: of the first convolution; each further one has half the number.
        conv_layers: pairs of a width-`kernel_size` and a width-1 convolution, each pair followed by max-pooling.
        kernel_size: width of the convolutions, in points.
        pool: width of max-pooling; a remainder is dropped.
        dense: units of the first dense layer; the second has a quarter.
        hidden: units of an LSTM.
        lstm_layers: number of stacked LSTMs.
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
                f"task.conv_layers={self.conv_layers}: too many for {self.radii} radial points; set a smaller number"
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

        `input` contains an LSTM's four gates (input, forget, cell, output, as in torch). The recurrent weights are not
        included.
        """
        sizes, width = {}, self.signals
        if self.profiles:
            channels = self.profiles
            for layer in range(self.conv_layers):
                filters = self.filters // 2**layer
                sizes[f"conv.{2 * layer}"] = self.kernel_size * channels, filters
                sizes[f"conv.{2 * layer + 1}"] = filters, filters
                channels = filters
            sizes["dense.0"] = channels * self.points, self.dense
            sizes["dense.1"] = self.dense, self.dense // 4
            width += self.dense // 4
        for layer in range(self.lstm_layers):
            sizes[f"lstm.{layer}.input"] = width, 4 * self.hidden
            width = self.hidden
        return sizes | {"output": (width, 1)}

    def shapes(self) -> dict[str, Spec]:
        """Every parameter. Keras's initial values: Glorot, and 1 for the bias of the forget gates (see `bias`)."""
        specs = {}
        for name, (inputs, outputs) in self.linears().items():
            specs[f"{name}.weight"] = Spec((outputs, inputs), "glorot_uniform")
            specs[f"{name}.bias"] = Spec((outputs,), "zeros")
            if name.startswith("lstm"):
                specs[name.replace("input", "recurrent.weight")] = Spec((outputs, self.hidden), "glorot_uniform")
        return specs

    def layers(self) -> dict[str, Layer]:
        """All linear layers except the recurrent ones, which run once per time step inside a scan."""
        return {name: Layer("linear", (f"{name}.weight", f"{name}.bias")) for name in self.linears()}

    def count_kept_bytes(self, value: int) -> float:
        """Bytes that a time step leaves for the backward pass; see `suite.contract.Keeps`."""
        total, channels, points = float(self.signals), self.profiles, self.radii
        for layer in range(self.conv_layers if self.profiles else 0):
            filters, points = self.filters // 2**layer, points - self.kernel_size + 1
            total += points * (self.kernel_size * channels + 2 * filters) + points // self.pool * filters
            channels, points = filters, points // self.pool
        total += 3 * self.dense if self.profiles else 0
        total += 17 * self.lstm_layers * self.hidden  # four gates, two states, and values derived from them
        return value * total
