"""Rows of classes with a label each: every label checked, the rows' losses added up (loss.cl)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netcl.core.backend import cpu
from netcl.core.backend.opencl import arm_flag, flag_buffer, index_message
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, DType, compute_dtype
from netcl.core.errors import IndexOutOfRange
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.kernels.grid import like
from netcl.kernels.plans import remember
from netcl.kernels.program import Program, program


class Labelled(NamedTuple):
    """Logits (N, C), labels (N,) and class weights (C,), and how their loss is taken."""

    z: Tensor
    t: Tensor
    weight: Tensor | None
    ignore: int
    smoothing: float = 0.0
    mean: bool = True
    where: str = "cross_entropy"  # the op that errors shall name


def finish(job: Labelled, loss: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Check the labels and add up the rows: (loss, 1 / sum of weights or 1), each of shape (1,)."""
    classes = job.z.shape[-1]
    if loss.backend == "cpu":
        _check_on_host(job.where, job.t, classes, job.ignore)
        total, scale = cpu.compute(_numpy_finish, loss, weights, mean=job.mean)
        return total, scale
    queue, labels = loss.queue, job.t.contiguous()
    key = ("finish", classes, job.ignore, job.mean, loss.dtype, loss.size, labels.dtype)
    launch = remember(queue, key, lambda: _finish_plan(job, loss, labels.dtype))
    out = launch(loss=loss.buffer, weight=weights.buffer, labels=labels, code=arm_flag(queue, job.where))
    return out[:1], out[1:]


def _finish_plan(job: Labelled, loss: Tensor, label: DType) -> Launch[Tensor]:
    made, group = _program("reduce_loss", loss.queue, loss.dtype, loss.dtype, label, MEAN=int(job.mean))
    facts = {"n": loss.size, "classes": job.z.shape[-1], "ignore": job.ignore}
    return made.bind(group, group, {"out": ((2,), loss.dtype)}, flag=flag_buffer(loss.queue), **facts)


def whole_loss(job: Labelled, gradient: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """In one launch of one group: (loss, 1 / sum of weights or 1), logsumexp of the rows, and d loss / d logits."""
    z, t, weight = job.z, job.t.contiguous(), job.weight
    key = ("loss", gradient, weight is None, job.ignore, job.smoothing, job.mean, t.dtype, *like(z))
    launch = remember(z.queue, key, lambda: _whole_plan(job, gradient))
    code = arm_flag(z.queue, job.where)
    out, lse, *slope = launch(z=z, w=z if weight is None else weight, labels=t, code=code)
    return out, lse, slope[0] if slope else None


def _whole_plan(job: Labelled, gradient: bool) -> Launch[tuple[Tensor, ...]]:
    z, compute = job.z, compute_dtype(job.z.dtype)
    wanted = {"CLASS_WEIGHTS": job.weight is not None, "SMOOTH": job.smoothing > 0, "GRADIENT": gradient}
    flags = {"LOGITS": 1, "MEAN": int(job.mean), **{name: 1 for name, on in wanted.items() if on}}
    made, group = _program("reduce_loss", z.queue, z.dtype, compute, job.t.dtype, **flags)
    new = {"out": ((2,), compute), "lse": (z.shape[:1], compute), **({"dz": (z.shape, z.dtype)} if gradient else {})}
    return made.bind(
        group,
        group,
        new,
        flag=flag_buffer(z.queue),
        n=z.shape[0],
        classes=z.shape[1],
        row=z.strides[0],
        step=z.strides[1],
        smooth=job.smoothing,
        ignore=job.ignore,
    )


def scale_of(job: Labelled) -> Tensor:
    """1 / (sum of the weights of labels that count), shape (1,): what `finish` gives, before the losses are known."""
    t, w = job.t.contiguous(), job.z if job.weight is None else job.weight.contiguous()
    key = ("label weights", job.weight is None, job.ignore, job.z.shape, job.z.dtype, w.dtype, t.dtype)
    return remember(job.z.queue, key, lambda: _scale_plan(job))(labels=t, w=w)


def _scale_plan(job: Labelled) -> Launch[Tensor]:
    z, w, compute = job.z, job.z if job.weight is None else job.weight, compute_dtype(job.z.dtype)
    flags = {} if job.weight is None else {"CLASS_WEIGHTS": 1}
    made, group = _program("reduce_weights", z.queue, w.dtype, compute, job.t.dtype, MEAN=1, **flags)
    return made.bind(group, group, {"out": ((1,), compute)}, n=z.shape[0], classes=z.shape[1], ignore=job.ignore)


def _program(
    name: str, queue: Queue, storage: DType, compute: DType, label: DType, **flags: int
) -> tuple[Program, tuple[int]]:
    """A kernel of loss.cl and the size of its group."""
    profile, element = profile_of(queue), C_NAME[compute]
    group = 1 if profile.kind == "cpu" else profile.group(256)
    total = "double" if group == 1 and profile.has_fp64 else element
    types = {"LABEL": C_NAME[label], "S": C_NAME[storage], "E": element, "ACC": total}
    return program(queue, sources.load("loss.cl", WG=group, **types, **flags), name, ("-w",)), (group,)


def _check_on_host(where: str, labels: Tensor, classes: int, ignore: int) -> None:
    values = labels.array
    bad = values[(values != ignore) & ((values < 0) | (values >= classes))]
    if bad.size:
        raise IndexOutOfRange(index_message(where, int(bad.flat[0]), classes))


def _numpy_finish(loss: np.ndarray, weights: np.ndarray, mean: bool) -> tuple[np.ndarray, np.ndarray]:
    total = loss.sum(dtype=np.float64)
    one = np.float64(1) / weights.sum(dtype=np.float64) if mean else np.float64(1)
    return np.asarray([total * one], loss.dtype), np.asarray([one], loss.dtype)
