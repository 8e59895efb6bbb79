"""Optimizers as update rows, learning-rate schedules, and gradient clipping; everything stays on the device."""

from netcl.optim import lr_scheduler
from netcl.optim.adagrad import Adadelta, Adagrad
from netcl.optim.adam import Adam, AdamW
from netcl.optim.adam_family import Adamax, Lion, NAdam, RAdam
from netcl.optim.clip import clip_grad_norm, clip_grad_norm_, clip_grad_norm_device, clip_grad_value, clip_grad_value_
from netcl.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
    WarmupCosine,
)
from netcl.optim.optimizer import Optimizer
from netcl.optim.rmsprop import RMSProp, RMSprop
from netcl.optim.sgd import SGD, Momentum

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "Lion",
    "Momentum",
    "MultiStepLR",
    "NAdam",
    "OneCycleLR",
    "Optimizer",
    "PolynomialLR",
    "RAdam",
    "RMSProp",
    "RMSprop",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "WarmupCosine",
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_norm_device",
    "clip_grad_value",
    "clip_grad_value_",
    "lr_scheduler",
]
