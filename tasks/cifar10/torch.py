"""ResNet-18 in torch."""

from suite.tasks._images.torch_resnet import ResNet
from suite.tasks.cifar10 import Cifar10


def make(task: Cifar10) -> ResNet:
    """The task's model, its weights not yet set."""
    return ResNet(task.architecture, smoothing=task.smoothing)
