"""Layers, losses and models. Constructors of layers with parameters take the queue first."""

from netcl.nn import functional, init
from netcl.nn.activation import (
    ELU,
    GELU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    Identity,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    SwiGLU,
    Swish,
    Tanh,
)
from netcl.nn.config import build_sequential, fast_bn_cnn_config
from netcl.nn.container import ModuleDict, ModuleList, Sequential
from netcl.nn.conv import Conv2d
from netcl.nn.dropout import Dropout
from netcl.nn.embedding import Embedding
from netcl.nn.linear import Linear
from netcl.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HingeLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from netcl.nn.models import (
    MLP,
    BasicBlock,
    Bottleneck,
    ResNet,
    ResNet18,
    ResNet34,
    ResNet50,
    ResNet101,
    ResNet152,
)
from netcl.nn.module import Module
from netcl.nn.norm import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm
from netcl.nn.parameter import Parameter
from netcl.nn.pool import AdaptiveAvgPool2d, AvgPool2d, Flatten, MaxPool2d

__all__ = [
    "ELU", "GELU", "MLP", "SELU", "AdaptiveAvgPool2d", "AvgPool2d", "BCELoss", "BCEWithLogitsLoss", "BasicBlock",
    "BatchNorm1d", "BatchNorm2d", "Bottleneck", "Conv2d", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten",
    "GroupNorm", "Hardsigmoid", "Hardswish", "Hardtanh", "HingeLoss", "HuberLoss", "Identity", "KLDivLoss", "L1Loss",
    "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax", "MSELoss", "MaxPool2d", "Mish", "Module",
    "ModuleDict", "ModuleList", "NLLLoss", "Parameter", "RMSNorm", "ReLU", "ResNet", "ResNet18", "ResNet34", "ResNet50",
    "ResNet101", "ResNet152",
    "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "Softplus", "Softsign", "SwiGLU", "Swish", "Tanh",
    "build_sequential", "fast_bn_cnn_config", "functional", "init",
]  # fmt: skip
