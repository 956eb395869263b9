"""Layers that `layers_of` finds in a model, in torch and in jax."""

from suite.contract import Layer, UserError

AXES = {"linear": 2, "conv2d": 4, "embedding": 1, "batchnorm": 2}  # fewest of an input, that of samples included


class Layers(dict[str, Layer]):
    """Layers by module name. Printed, it is a table of all modules with parameters.

    Args:
        found: the layers.
        rest: why each other module that has parameters is no layer here, by module name; in jax, by parameter.
    """

    def __init__(self, found: dict[str, Layer], rest: dict[str, str]):
        super().__init__(found)
        self.rest = rest

    def __reduce__(self) -> tuple[type["Layers"], tuple[dict[str, Layer], dict[str, str]]]:
        return Layers, (dict(self), self.rest)

    def __str__(self) -> str:
        rows = [(name, layer.kind + " (transposed)" * layer.transposed) for name, layer in self.items()]
        rows += [(name, f"no layer: {reason}") for name, reason in self.rest.items()]
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(f"{name:{width}}  {what}" for name, what in rows)


def check_input(name: str, layer: Layer, shape: tuple[int, ...]) -> None:
    """Check that the input of an observed layer has samples.

    Raises:
        UserError: it has no axis for them, or none.
    """
    if len(shape) < AXES[layer.kind]:
        raise UserError(f"layer {name}: its input {shape} has no axis for samples; add one in front, as in x[None]")
    if not shape[0]:
        raise UserError(f"layer {name}: its input {shape} has no samples; leave out empty batches")
