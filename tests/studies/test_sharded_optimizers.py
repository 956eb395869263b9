"""PyTorch's optimizers on two ranks."""

from torch.optim import SGD

from suite.studies.sharded_optimizers.torch import train_network, train_sharded


def test_ranks_repeat_one_process_and_omit_what_raises() -> None:
    losses = train_sharded(["SGD", "Rprop"], 3, 0.1, 2)
    assert losses == {"SGD": train_network(SGD, 3, 0.1, 2)}
