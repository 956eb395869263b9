"""ResNet-18 in jax."""

from suite.tasks._images.jax_resnet import ResNet
from suite.tasks.cifar10 import Cifar10


def make(task: Cifar10) -> ResNet:
    """Make the task's model."""
    return ResNet(task.architecture, smoothing=task.smoothing)
