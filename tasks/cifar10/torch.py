"""ResNet-18 in torch."""

from suite.tasks._images.torch_resnet import ResNet
from suite.tasks.cifar10 import Cifar10


def make(task: Cifar10) -> ResNet:
    """Make the task's model; its weights are set later."""
    return ResNet(task.architecture, smoothing=task.smoothing)
