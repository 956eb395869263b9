"""FRNN in torch: plain linear layers, and an LSTM that is one loop over time."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from suite.stream.torch import Key, normal, uniform
from suite.tasks._nn.torch import dropout, widen_floats
from suite.tasks.frnn import FRNN
from suite.tasks.frnn.architecture import Architecture

Tree = dict[str, Tensor]


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; with forget gates, Gers et al. 2000).

    Args:
        inputs: numbers a step.
        hidden: units.
    """

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.input, self.recurrent = nn.Linear(inputs, 4 * hidden), nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """(N, T, inputs) to (N, T, hidden), and the last hidden state and cell (N, hidden).

        `mask` (N, hidden) multiplies the recurrent state, as in Keras's recurrent dropout.
        """
        if mask is None and not self.input._forward_hooks:  # no hook needs the gates: torch's kernel is twice as fast
            if torch.is_autocast_enabled(x.device.type):  # not every CPU has a kernel for float32 inputs then
                x = x.to(torch.get_autocast_dtype(x.device.type))
            weights = [self.input.weight, self.recurrent.weight, self.input.bias, torch.zeros_like(self.input.bias)]
            outputs, last, cells = torch.lstm(
                x, (hidden[None], cell[None]), weights, True, 1, 0.0, self.training, False, True
            )
            return outputs, last[0], cells[0]
        size, outputs, weight = hidden.shape[1], [], self.recurrent.weight.T
        for gates in self.input(x).unbind(1):
            gates = torch.addmm(gates, hidden if mask is None else hidden * mask, weight)
            first, forget, new, last = gates.split(size, 1)
            cell = torch.addcmul(forget.sigmoid() * cell, first.sigmoid(), new.tanh())
            hidden = last.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs, 1), hidden, cell


class Network(nn.Module):
    """Signals and profiles to one number per step, larger towards a disruption.

    Args:
        architecture: the network's sizes.
        target: `hinge` or `ttd`.
        activation: of the convolutions, `relu` or `none`.
        rate: of dropout.
        l2: penalty.
        length: number of steps read at a time in evaluation.
    """

    def __init__(
        self, architecture: Architecture, *, target: str, activation: str, rate: float, l2: float, length: int
    ):
        super().__init__()
        self.architecture, self.target, self.rate, self.l2, self.length = architecture, target, rate, l2, length
        self.activation = torch.relu if activation == "relu" else nn.Identity()
        sizes, hidden = architecture.linears(), architecture.hidden
        if architecture.profiles:
            self.conv, self.dense = (
                nn.ModuleList(nn.Linear(*size) for name, size in sizes.items() if name.startswith(group))
                for group in ("conv", "dense")
            )
        self.lstm = nn.ModuleList(LSTM(size[0], hidden) for name, size in sizes.items() if name.startswith("lstm"))
        self.output = nn.Linear(*sizes["output"])

    def forward(self, batch: Tree, carry: Tree | None = None, key: Key | None = None) -> tuple[Tree, Tree]:
        """`output` (N, T); in training also the penalties, in evaluation the inputs of the score.

        The carry is `hidden` and `cell`, (N, layers, hidden) each. In training, a sequence that begins a shot starts
        from zeros. In evaluation, every sequence does, and is read `length` steps at a time, as in training.
        """
        if self.training:
            keep = (~batch["begins"]).to(batch["mask"].dtype)[:, None, None]
            state = {name: value * keep for name, value in (carry or {}).items()}
            outputs, state = self._read(batch, state, key)
            return outputs | {"target": batch["target"], "penalty": self._penalty()}, state
        size = len(batch["mask"]), len(self.lstm), self.architecture.hidden
        state = {name: batch["mask"].new_zeros(size) for name in ("hidden", "cell")}
        pieces = []
        for start in range(0, batch["mask"].shape[1], self.length):
            piece = {
                name: batch[name][:, start : start + self.length] for name in batch.keys() & {"signals", "profiles"}
            }
            outputs, state = self._read(piece | {"index": batch["index"]}, state, None)
            pieces.append(outputs["output"])
        output = torch.cat(pieces, 1)
        loss = (self._losses(widen_floats(output), batch["target"]) * batch["mask"]).sum(1)
        return {"output": output, "loss": loss} | {
            name: batch[name] for name in ("steps", "disrupted", "weight")
        }, state

    def _read(self, batch: Tree, state: Tree, key: Key | None) -> tuple[Tree, Tree]:
        """`output` and `activity` (N, T) of some steps, and the state after them."""
        x, index = batch["signals"], batch["index"]
        activity = torch.zeros_like(x[..., 0])
        if self.architecture.profiles:
            seen, activity = self._profiles(batch["profiles"])
            x = torch.cat([x, seen], 2)
        after = []
        for layer, lstm in enumerate(self.lstm):
            hidden, cell = state["hidden"][:, layer], state["cell"][:, layer]
            mask = None
            if self.rate and key is not None:
                x = x * self._mask(f"lstm.{layer}/input", x[:, 0], key, index)[:, None]
                mask = self._mask(f"lstm.{layer}/state", hidden, key, index)
            x, *last = lstm(x, hidden, cell, mask)
            x = dropout(x, self.rate, key=key, name=f"lstm.{layer}/output", index=index)
            after.append(last)
        hidden, cell = (torch.stack(values, 1) for values in zip(*after, strict=True))
        return {"output": self.output(x)[..., 0], "activity": activity}, {"hidden": hidden, "cell": cell}

    def _profiles(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Profiles (N, T, radii, 1D) to features (N, T, dense / 4), and the dense layers' summed squares (N, T)."""
        size, pool = self.architecture.kernel_size, self.architecture.pool
        for layer in range(0, len(self.conv), 2):
            points = x.shape[2] - size + 1
            x = torch.cat([x[:, :, i : i + points] for i in range(size)], 3)  # neighbouring points adjacent
            x = self.activation(self.conv[layer + 1](self.activation(self.conv[layer](x))))
            x = x[:, :, : points // pool * pool].unflatten(2, (-1, pool)).amax(3)
        x, activity = x.flatten(2), torch.zeros_like(x[:, :, 0, 0])
        for dense in self.dense:
            x = dense(x)
            activity = activity + widen_floats(x).square().sum(2)
            x = torch.relu(x)
        return x, activity

    def _mask(self, name: str, like: Tensor, key: Key, index: Tensor) -> Tensor:
        """Dropout's factors (N, width), the same at every step of a sequence."""
        return dropout(torch.ones_like(like), self.rate, key=key, name=name, index=index)

    def _penalty(self) -> Tensor:
        """Summed squares of the weights of the dense layers and the LSTMs."""
        squares = [p.square().sum() for name, p in self.named_parameters() if name.startswith(("dense", "lstm"))]
        return torch.stack(squares).sum()

    def _losses(self, output: Tensor, target: Tensor) -> Tensor:
        if self.target == "hinge":
            return functional.relu(1.0 - target * output)
        return (output - target).square()

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Tensor, Tensor]:
        """Summed losses of the steps that count, and their number."""
        mask = batch["mask"] * batch["weight"][:, None]
        losses = self._losses(outputs["output"], outputs["target"]) + self.l2 * (
            outputs["activity"] + outputs["penalty"]
        )
        return (losses * mask).sum(), mask.sum()

    def sample(self, outputs: Tree, key: Key, batch: Tree) -> Tree:
        """Return the outputs with targets drawn from the model.

        For `ttd`, they are drawn from the normal distribution whose negative log-likelihood is the loss. A hinge loss
        has no such distribution; ±1 is drawn with log-odds of twice the output, which gives the same unit of margin.
        """
        output = outputs["output"]
        index = batch["index"][:, None] * output.shape[1] + torch.arange(output.shape[1], device=output.device)
        if self.target == "hinge":
            draws = uniform(key, "target", index).to(output)
            target = torch.where(draws < torch.sigmoid(2.0 * output), 1.0, -1.0).to(output)
        else:
            target = output.detach() + 0.5**0.5 * normal(key, "target", index).to(output)
        return outputs | {"target": target}


def make(task: FRNN) -> Network:
    """Make the task's model; its weights are set later."""
    options = {"target": task.target, "activation": task.activation, "rate": task.dropout, "l2": task.l2}
    return Network(task.architecture, length=task.length, **options)
