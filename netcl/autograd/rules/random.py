"""Dropout: backward draws the mask again from the counter instead of keeping it."""

from __future__ import annotations

from netcl.autograd.op import register_op
from netcl.ops.create import random

register_op(
    "dropout",
    random.dropout,
    lambda g, y, x, p=0.5, generator=None, *, aux: random.dropout_grad(g, p, aux),
    saves=(),
    aux=True,
)
