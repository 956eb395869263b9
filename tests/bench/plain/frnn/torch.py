"""FRNN: convolutions along the radius of two profiles, two dense layers, two LSTMs of 48 units, one number a step."""

import torch
from torch import Tensor, nn

from ..torch import filled


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        relu, pool = nn.ReLU(True), nn.MaxPool1d(2)
        self.profiles = nn.Sequential(
            *(nn.Conv1d(2, 16, 3), relu, nn.Conv1d(16, 16, 1), relu, pool),
            *(nn.Conv1d(16, 8, 3), relu, nn.Conv1d(8, 8, 1), relu, pool, nn.Flatten()),
            *(nn.Linear(16, 32), relu, nn.Linear(32, 8), relu),
        )
        self.lstm = nn.LSTM(22, 48, num_layers=2, batch_first=True)
        self.output = nn.Linear(48, 1)
        self.state = torch.zeros(2, 32, 48), torch.zeros(2, 32, 48)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        profiles = batch["profiles"].flatten(0, 1).mT  # (sequences × steps, 2, radii)
        x = torch.cat([batch["signals"], self.profiles(profiles).unflatten(0, (32, 64))], 2)
        goes_on = ~batch["begins"][None, :, None]
        hidden, state = self.lstm(x, tuple(value * goes_on for value in self.state))
        self.state = tuple(value.detach() for value in state)
        losses = torch.relu(1.0 - batch["target"] * self.output(hidden)[..., 0])
        return (losses * batch["mask"]).sum() / batch["mask"].sum()


def make(values: dict[str, Tensor]) -> nn.Module:
    """torch's LSTM has a second bias, here 0 and not trained."""
    given = []
    for number in (0, 1, 2, 3):
        weight = values[f"conv.{number}.weight"]
        kernel = 1 if number % 2 else 3
        given += [weight.unflatten(1, (kernel, -1)).mT, values[f"conv.{number}.bias"]]
    flat = values["dense.0.weight"].unflatten(1, (2, 8)).mT.flatten(1)  # channels before points
    given += [flat, *(values[f"dense.{name}"] for name in ("0.bias", "1.weight", "1.bias"))]
    for at in ("lstm.0", "lstm.1"):
        bias = values[f"{at}.input.bias"]
        given += [values[f"{at}.input.weight"], values[f"{at}.recurrent.weight"], bias, torch.zeros_like(bias)]
    model = filled(Model(), [*given, values["output.weight"], values["output.bias"]])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("bias_hh" not in name)
    return model
