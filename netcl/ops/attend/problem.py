"""What an attention is to the kernels: sizes, masks, and the record of strides."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from netcl.core.dtypes import FLOAT32, DType
from netcl.core.tensor import Tensor

OPTIONS = ("-cl-mad-enable",)


DIMS = struct.Struct("23q")  # Dims of attention_cpu.cl
RECORD = np.dtype(f"V{DIMS.size}")


class Geometry(NamedTuple):
    """What a call computes: lengths, heads per head of k (group), and the mask's form."""

    batch: int
    heads: int
    group: int
    queries: int
    keys: int
    size: int
    causal: bool
    window: int  # 0 for none
    scale: float


def dims_of(x: Geometry, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, mask: Tensor | None, *rest: int) -> bytes:
    """The Dims of a launch; `rest` is (splits, rows) of the gradient on CPU devices."""
    steps = [s for t in (q, k, v, g) for s in (t.strides[:3] if t is not None else (0, 0, 0))]
    mask_step = 0 if mask is None else mask.strides[0]
    head = (x.batch, x.heads, x.group, x.queries, x.keys, x.size, x.causal, x.window, mask_step)
    return DIMS.pack(*head, *steps, *(rest or (1, 0)))


def number(compute: DType) -> DType:
    """The type of a scalar argument."""
    return np.dtype(np.float64) if compute.itemsize == 8 else FLOAT32
