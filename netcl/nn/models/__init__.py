"""Complete models."""

from netcl.nn.models.mlp import MLP
from netcl.nn.models.resnet import BasicBlock, Bottleneck, ResNet, ResNet18, ResNet34, ResNet50, ResNet101, ResNet152

__all__ = ["MLP", "BasicBlock", "Bottleneck", "ResNet", "ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152"]
