"""ResNet-50 in jax."""

from suite.tasks._images.jax_resnet import ResNet
from suite.tasks.resnet50 import ResNet50


def make(task: ResNet50) -> ResNet:
    """Make the task's model."""
    return ResNet(task.architecture, task.smoothing)
