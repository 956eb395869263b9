"""ResNet-50 in torch."""

from suite.tasks._images.torch_resnet import ResNet
from suite.tasks.resnet50 import ResNet50


def make(task: ResNet50) -> ResNet:
    """The task's model, its weights not yet set."""
    return ResNet(task.architecture, smoothing=task.smoothing)
