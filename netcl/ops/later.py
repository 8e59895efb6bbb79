"""Functions of `netcl.ops` whose modules load at first use: conv2d, softmax, norms, pools."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from netcl.ops.record import find

LATER = {  # name: module of its record, below netcl.ops
    "adaptive_avg_pool2d": "pooling.op",
    "astype": "record",
    "attention": "attend.op",
    "avg_pool2d": "pooling.op",
    "batch_norm": "normalization.records",
    "conv2d": "convolution.op",
    "cross_entropy": "losses.records",
    "expand": "record",
    "flatten": "record",
    "getitem": "record",
    "global_avg_pool2d": "pooling.op",
    "group_norm": "normalization.records",
    "layer_norm": "normalization.records",
    "max_pool2d": "pooling.op",
    "permute": "record",
    "reshape": "record",
    "rms_norm": "normalization.records",
    "softmax": "normalization.records",
    "squeeze": "record",
    "to": "record",
    "transpose": "record",
    "unsqueeze": "record",
    "weighted_bce_smooth_l1_loss": "losses.detection",
}


def load(name: str) -> Callable[..., Any]:
    """The function of an op's record: its result on tensors, without what backward would need."""
    import_module(f"netcl.ops.{LATER[name]}")
    op = find(name)
    assert op is not None
    public, has_more = op.public, op.aux
    unasked = {word: False for word, is_named in (("recorded", op.asks), ("room", op.waits)) if is_named}

    @functools.wraps(public)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = public(*args, **kwargs, **unasked)
        return found[0] if has_more and isinstance(found, tuple) else found

    return call
