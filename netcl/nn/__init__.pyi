# Written by tools/generate_stubs.py; do not edit. A layer's queue may come first or be left out.

from typing import Any, overload

from netcl.nn import conv as _conv
from netcl.nn import embedding as _embedding
from netcl.nn import linear as _linear
from netcl.nn.models import mlp as _mlp
from netcl.nn.models import resnet as _resnet
from netcl.nn import norm as _norm
from netcl.autograd.node import Parameter as Parameter
from netcl.nn import functional as functional
from netcl.nn import init as init
from netcl.nn.activation import ELU as ELU
from netcl.nn.activation import GELU as GELU
from netcl.nn.activation import Hardsigmoid as Hardsigmoid
from netcl.nn.activation import Hardswish as Hardswish
from netcl.nn.activation import Hardtanh as Hardtanh
from netcl.nn.activation import Identity as Identity
from netcl.nn.activation import LeakyReLU as LeakyReLU
from netcl.nn.activation import LogSigmoid as LogSigmoid
from netcl.nn.activation import LogSoftmax as LogSoftmax
from netcl.nn.activation import Mish as Mish
from netcl.nn.activation import ReLU as ReLU
from netcl.nn.activation import SELU as SELU
from netcl.nn.activation import SiLU as SiLU
from netcl.nn.activation import Sigmoid as Sigmoid
from netcl.nn.activation import Softmax as Softmax
from netcl.nn.activation import Softplus as Softplus
from netcl.nn.activation import Softsign as Softsign
from netcl.nn.activation import SwiGLU as SwiGLU
from netcl.nn.activation import Swish as Swish
from netcl.nn.activation import Tanh as Tanh
from netcl.nn.config import build_sequential as build_sequential
from netcl.nn.config import fast_bn_cnn_config as fast_bn_cnn_config
from netcl.nn.container import ModuleDict as ModuleDict
from netcl.nn.container import ModuleList as ModuleList
from netcl.nn.container import Sequential as Sequential
from netcl.nn.dropout import Dropout as Dropout
from netcl.nn.loss import BCELoss as BCELoss
from netcl.nn.loss import BCEWithLogitsLoss as BCEWithLogitsLoss
from netcl.nn.loss import CrossEntropyLoss as CrossEntropyLoss
from netcl.nn.loss import HingeLoss as HingeLoss
from netcl.nn.loss import HuberLoss as HuberLoss
from netcl.nn.loss import KLDivLoss as KLDivLoss
from netcl.nn.loss import L1Loss as L1Loss
from netcl.nn.loss import MSELoss as MSELoss
from netcl.nn.loss import NLLLoss as NLLLoss
from netcl.nn.loss import SmoothL1Loss as SmoothL1Loss
from netcl.nn.module import Module as Module
from netcl.nn.pool import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from netcl.nn.pool import AvgPool2d as AvgPool2d
from netcl.nn.pool import Flatten as Flatten
from netcl.nn.pool import MaxPool2d as MaxPool2d

__all__ = [
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BasicBlock",
    "BatchNorm1d",
    "BatchNorm2d",
    "Bottleneck",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "ELU",
    "Embedding",
    "Flatten",
    "GELU",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HingeLoss",
    "HuberLoss",
    "Identity",
    "KLDivLoss",
    "L1Loss",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "MLP",
    "MSELoss",
    "MaxPool2d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "NLLLoss",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "ResNet",
    "ResNet101",
    "ResNet152",
    "ResNet18",
    "ResNet34",
    "ResNet50",
    "SELU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Softsign",
    "SwiGLU",
    "Swish",
    "Tanh",
    "build_sequential",
    "fast_bn_cnn_config",
    "functional",
    "init",
]

class BasicBlock(_resnet.BasicBlock):
    @overload
    def __init__(self, queue: Any, channels: int, width: int, stride: int = ...) -> None: ...
    @overload
    def __init__(self, channels: int, width: int, stride: int = ..., *, device: Any = ...) -> None: ...

class BatchNorm1d(_norm.BatchNorm1d):
    @overload
    def __init__(self, queue: Any, num_features: int, eps: float = ..., momentum: float = ..., affine: bool = ..., track_running_stats: bool = ..., *, dtype: Any = ...) -> None: ...
    @overload
    def __init__(self, num_features: int, eps: float = ..., momentum: float = ..., affine: bool = ..., track_running_stats: bool = ..., *, dtype: Any = ..., device: Any = ...) -> None: ...

class BatchNorm2d(_norm.BatchNorm2d):
    @overload
    def __init__(self, queue: Any, num_features: int, eps: float = ..., momentum: float = ..., affine: bool = ..., track_running_stats: bool = ..., *, dtype: Any = ...) -> None: ...
    @overload
    def __init__(self, num_features: int, eps: float = ..., momentum: float = ..., affine: bool = ..., track_running_stats: bool = ..., *, dtype: Any = ..., device: Any = ...) -> None: ...

class Bottleneck(_resnet.Bottleneck):
    @overload
    def __init__(self, queue: Any, channels: int, width: int, stride: int = ...) -> None: ...
    @overload
    def __init__(self, channels: int, width: int, stride: int = ..., *, device: Any = ...) -> None: ...

class Conv2d(_conv.Conv2d):
    @overload
    def __init__(self, queue: Any, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = ..., padding: Any = ..., dilation: Any = ..., groups: int = ..., bias: bool = ..., *, dtype: Any = ...) -> None: ...
    @overload
    def __init__(self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = ..., padding: Any = ..., dilation: Any = ..., groups: int = ..., bias: bool = ..., *, dtype: Any = ..., device: Any = ...) -> None: ...

class Embedding(_embedding.Embedding):
    @overload
    def __init__(self, queue: Any, num_embeddings: int, embedding_dim: int, padding_idx: int | None = ..., *, dtype: Any = ...) -> None: ...
    @overload
    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = ..., *, dtype: Any = ..., device: Any = ...) -> None: ...

class GroupNorm(_norm.GroupNorm):
    @overload
    def __init__(self, queue: Any, num_groups: int, num_channels: int, eps: float = ..., affine: bool = ..., *, dtype: Any = ...) -> None: ...
    @overload
    def __init__(self, num_groups: int, num_channels: int, eps: float = ..., affine: bool = ..., *, dtype: Any = ..., device: Any = ...) -> None: ...

class LayerNorm(_norm.LayerNorm):
    @overload
    def __init__(self, queue: Any, normalized_shape: Any, eps: float = ..., elementwise_affine: bool = ..., bias: bool = ..., *, dtype: Any = ...) -> None: ...
    @overload
    def __init__(self, normalized_shape: Any, eps: float = ..., elementwise_affine: bool = ..., bias: bool = ..., *, dtype: Any = ..., device: Any = ...) -> None: ...

class Linear(_linear.Linear):
    @overload
    def __init__(self, queue: Any, in_features: int, out_features: int, bias: bool = ..., *, dtype: Any = ...) -> None: ...
    @overload
    def __init__(self, in_features: int, out_features: int, bias: bool = ..., *, dtype: Any = ..., device: Any = ...) -> None: ...

class MLP(_mlp.MLP):
    @overload
    def __init__(self, queue: Any, input_dim: int, hidden_dim: int, output_dim: int, num_hidden_layers: int = ..., activation: type[Module] = ...) -> None: ...
    @overload
    def __init__(self, input_dim: int, hidden_dim: int, output_dim: int, num_hidden_layers: int = ..., activation: type[Module] = ..., *, device: Any = ...) -> None: ...

class RMSNorm(_norm.RMSNorm):
    @overload
    def __init__(self, queue: Any, normalized_shape: Any, eps: float = ..., elementwise_affine: bool = ..., *, dtype: Any = ...) -> None: ...
    @overload
    def __init__(self, normalized_shape: Any, eps: float = ..., elementwise_affine: bool = ..., *, dtype: Any = ..., device: Any = ...) -> None: ...

class ResNet(_resnet.ResNet):
    @overload
    def __init__(self, queue: Any, block: type[BasicBlock] = ..., counts: tuple[int, ...] = ..., num_classes: int = ..., in_channels: int = ...) -> None: ...
    @overload
    def __init__(self, block: type[BasicBlock] = ..., counts: tuple[int, ...] = ..., num_classes: int = ..., in_channels: int = ..., *, device: Any = ...) -> None: ...

class ResNet101(_resnet.ResNet101):
    @overload
    def __init__(self, queue: Any, num_classes: int = ..., in_channels: int = ...) -> None: ...
    @overload
    def __init__(self, num_classes: int = ..., in_channels: int = ..., *, device: Any = ...) -> None: ...

class ResNet152(_resnet.ResNet152):
    @overload
    def __init__(self, queue: Any, num_classes: int = ..., in_channels: int = ...) -> None: ...
    @overload
    def __init__(self, num_classes: int = ..., in_channels: int = ..., *, device: Any = ...) -> None: ...

class ResNet18(_resnet.ResNet18):
    @overload
    def __init__(self, queue: Any, num_classes: int = ..., in_channels: int = ...) -> None: ...
    @overload
    def __init__(self, num_classes: int = ..., in_channels: int = ..., *, device: Any = ...) -> None: ...

class ResNet34(_resnet.ResNet34):
    @overload
    def __init__(self, queue: Any, num_classes: int = ..., in_channels: int = ...) -> None: ...
    @overload
    def __init__(self, num_classes: int = ..., in_channels: int = ..., *, device: Any = ...) -> None: ...

class ResNet50(_resnet.ResNet50):
    @overload
    def __init__(self, queue: Any, num_classes: int = ..., in_channels: int = ...) -> None: ...
    @overload
    def __init__(self, num_classes: int = ..., in_channels: int = ..., *, device: Any = ...) -> None: ...
