"""Complete models."""

from netcl.nn.models.mlp import MLP
from netcl.nn.models.resnet import BasicBlock, Bottleneck, ResNet, ResNet18, ResNet50

__all__ = ["MLP", "BasicBlock", "Bottleneck", "ResNet", "ResNet18", "ResNet50"]
