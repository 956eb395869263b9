"""ResNet-50 in torch."""

from suite.tasks._images.torch_resnet import ResNet
from suite.tasks.resnet50 import ResNet50


def make(task: ResNet50) -> ResNet:
    """Make the task's model; its weights are set later."""
    return ResNet(task.architecture, smoothing=task.smoothing)
