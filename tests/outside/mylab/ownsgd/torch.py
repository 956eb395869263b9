import torch


def make(parameters, *, lr=0.1, momentum=0.9):
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, foreach=True)
