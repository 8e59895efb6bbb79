"""Batch norm over the channels (axis 1) of (N, C, ...), with gradients and an optional fused relu.

Sums run in float32 for half and float32, in double for double. Kernels: batch_norm_cpu.cl and batch_norm_gpu.cl.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.backend.opencl import launch
from netcl.core.dtypes import C_NAME, FLOAT32, INT32, INT64, DType, compute_dtype
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.profile import DeviceProfile, profile_of
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.ops.elementwise import assign
from netcl.ops.norm import (
    OPTIONS,
    Needs,
    Optional,
    check_float,
    check_parameter,
    check_same,
    cpu_vector,
    flags_of,
    gpu_vector,
    parameter_dtype,
    prepared,
    source,
    split_rows,
    stream_flag,
)
from netcl.runtime.cache import get_kernel

CHUNK = 8192  # elements of a channel that a GPU work-group sums up
GROUP = 256  # work-items per group of the elementwise kernels
NEAR = 4096  # elements that neighbouring channels share of a sample, at most, for one work-item of a CPU device
FINISH = 32  # work-items that join the partial sums of a channel
ACTIVATIONS = (None, "relu")


def batch_norm(
    x: Tensor, weight: Optional = None, bias: Optional = None, running_mean: Optional = None,
    running_var: Optional = None, *, training: bool = True, momentum: float = 0.1, eps: float = 1e-5,
    activation: str | None = None,
) -> tuple[Tensor, Optional, Optional]:  # fmt: skip
    """y = act((x - mean) * rstd * weight + bias) per channel (axis 1), rstd = 1 / sqrt(var + eps).

    Training: mean and the biased var of the batch; the running statistics, when given, move in place,
    running = (1 - momentum) running + momentum batch, the variance by the unbiased one. Returns (y, mean, rstd).
    Eval: the running statistics, one launch. Returns (y, None, None).
    Shapes: x (N, C, ...); weight, bias, running statistics, mean, rstd (C,). activation: None or "relu", fused.
    Raises: ShapeError for one value per channel in training (it has no variance) and for shapes that do not fit.
    Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
    """
    compute = _check_batch("batch_norm", x, weight, bias, activation)
    statistics = [t for t in (running_mean, running_var) if t is not None]
    if len(statistics) == 1 or (not training and not statistics):
        raise ShapeError(f"batch_norm: expected running_mean and running_var, got {len(statistics)} of the two.")
    for t in statistics:
        check_parameter("batch_norm", "running statistics", t, x.shape[1:2])
        if t.dtype != compute:
            raise DTypeError(f"batch_norm: expected {compute} running statistics for {x.dtype}, got {t.dtype}.")
    queue = same_queue("batch_norm", x, *statistics, *[p for p in (weight, bias) if p is not None])
    if training and x.size <= x.shape[1]:
        raise ShapeError(
            f"batch_norm: expected more than one value per channel in training, got shape {x.shape}; "
            "use a larger batch or eval mode."
        )
    if x.backend == "cpu":
        return _numpy_batch(x, weight, bias, statistics, training, momentum, eps, activation)
    if not training:
        return _apply(queue, x.contiguous(), weight, bias, statistics, eps, activation), None, None
    return _train(queue, x.contiguous(), weight, bias, statistics, momentum, eps, activation)


def batch_norm_grad(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Optional = None, bias: Optional = None,
    needs: Needs = (True, True, True), *, training: bool = True, activation: str | None = None,
) -> tuple[Optional, Optional, Optional]:  # fmt: skip
    """(dx, dweight, dbias) of `batch_norm`, None where `needs` says so.

    With h = (x - mean) rstd, u = g (0 where relu gave 0), n = values per channel: dbias = sum u, dweight = sum u h,
    dx = weight rstd (u - dbias / n - h dweight / n); training=False: mean and rstd are constants, dx = weight rstd u.
    `bias` is read only with an activation, to find again where it was 0. dweight has weight's dtype, dbias the same.
    """
    compute = _check_batch("batch_norm_grad", x, weight, bias, activation)
    check_same("batch_norm_grad", "g", g, x)
    for name, t in (("mean", mean), ("rstd", rstd)):
        check_parameter("batch_norm_grad", name, t, x.shape[1:2])
    queue = same_queue("batch_norm_grad", g, x, mean, rstd, *[p for p in (weight, bias) if p is not None])
    needs = tuple(bool(n) for n in needs)
    if not any(needs):
        return None, None, None
    if x.backend == "cpu":
        given = (weight is not None, bias is not None)
        tensors = [t for t in (g, x, mean, rstd, weight, bias) if t is not None]
        found = cpu.compute(_numpy_batch_grad, *tensors, given=given, training=training, relu=activation == "relu")
    else:
        bias = bias if activation else None
        g, mean, rstd = g.astype(x.dtype), mean.astype(compute), rstd.astype(compute)
        tensors = [t.contiguous() for t in (g, x, mean, rstd)]
        found = _batch_grad(queue, tensors, weight, bias, needs, training, activation)
    return tuple(t if need else None for t, need in zip(found, needs))  # type: ignore[return-value]


def _check_batch(where: str, x: Tensor, weight: Optional, bias: Optional, activation: str | None) -> DType:
    compute = check_float(where, x)
    if x.ndim < 2:
        raise ShapeError(f"{where}: expected (N, C, ...), got shape {x.shape}.")
    check_parameter(where, "weight", weight, x.shape[1:2])
    check_parameter(where, "bias", bias, x.shape[1:2])
    if activation not in ACTIVATIONS:
        raise ValueError(f"{where}: expected an activation of {ACTIVATIONS}, got {activation!r}.")
    return compute


# -- batch norm on NumPy -----------------------------------------------------------------------------------------------


def per_channel(a: np.ndarray, ndim: int, dtype: DType) -> np.ndarray:
    """`a` (C,) shaped to broadcast over (N, C, ...)."""
    return a.astype(dtype, copy=False).reshape((1, -1) + (1,) * (ndim - 2))


def _numpy_batch(
    x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], training: bool, momentum: float, eps: float,
    activation: str | None,
) -> tuple[Tensor, Optional, Optional]:  # fmt: skip
    tensors = [t for t in (x, weight, bias) if t is not None]
    given = (weight is not None, bias is not None)
    attrs: dict[str, Any] = {"given": given, "eps": float(eps), "relu": activation == "relu"}
    if not training:
        return cpu.compute(_numpy_apply, *tensors, *statistics, **attrs), None, None
    y, mean, rstd, var = cpu.compute(_numpy_train, *tensors, **attrs)
    if statistics:
        cpu.update(_numpy_running, statistics, mean, var, momentum=float(momentum))
    return y, mean, rstd


def scale_and_shift(h: np.ndarray, parameters: list[np.ndarray], given: tuple[bool, bool], relu: bool) -> np.ndarray:
    """h * weight + bias per channel, those that are `given`, then relu."""
    parameters = list(parameters)
    if given[0]:
        h = h * per_channel(parameters.pop(0), h.ndim, h.dtype)
    if given[1]:
        h = h + per_channel(parameters.pop(0), h.ndim, h.dtype)
    return np.where(h < 0, 0, h) if relu else h


def _numpy_train(x: np.ndarray, *affine: np.ndarray, given: Any, eps: float, relu: bool) -> tuple[np.ndarray, ...]:
    compute = compute_dtype(x.dtype)
    axes = (0, *range(2, x.ndim))
    v = x.astype(compute, copy=False)
    n = compute.type(x.size // x.shape[1])
    mean = v.sum(axis=axes) / n
    v = v - per_channel(mean, x.ndim, compute)
    squares = (v * v).sum(axis=axes)
    rstd = 1 / np.sqrt(squares / n + compute.type(eps))
    y = scale_and_shift(v * per_channel(rstd, x.ndim, compute), list(affine), given, relu)
    return y.astype(x.dtype, copy=False), mean, rstd, squares / (n - 1)


def _numpy_running(
    old_mean: np.ndarray, old_var: np.ndarray, mean: np.ndarray, var: np.ndarray, momentum: float
) -> tuple[np.ndarray, np.ndarray]:
    m = old_mean.dtype.type(momentum)
    return old_mean * (1 - m) + mean * m, old_var * (1 - m) + var * m


def _numpy_apply(x: np.ndarray, *rest: np.ndarray, given: Any, eps: float, relu: bool) -> np.ndarray:
    compute = compute_dtype(x.dtype)
    *affine, mean, var = rest
    rstd = per_channel(1 / np.sqrt(var + compute.type(eps)), x.ndim, compute)
    h = (x.astype(compute, copy=False) - per_channel(mean, x.ndim, compute)) * rstd
    return scale_and_shift(h, affine, given, relu).astype(x.dtype, copy=False)


def _numpy_batch_grad(
    g: np.ndarray, x: np.ndarray, mean: np.ndarray, rstd: np.ndarray, *affine: np.ndarray, given: Any, training: bool,
    relu: bool,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    compute, ndim = compute_dtype(x.dtype), x.ndim
    axes = (0, *range(2, ndim))
    k = per_channel(rstd, ndim, compute)
    h = (x.astype(compute, copy=False) - per_channel(mean, ndim, compute)) * k
    u = g.astype(compute, copy=False)
    if relu:
        v = scale_and_shift(h, list(affine), given, False)
        u = np.where(v > 0, u, np.where(v <= 0, 0, v)).astype(compute, copy=False)
    db, dw = u.sum(axis=axes), (u * h).sum(axis=axes)
    stored = affine[0].dtype if given[0] else compute
    if training:
        n = compute.type(x.size // max(x.shape[1], 1))
        u = u - per_channel(db / n, ndim, compute) - h * per_channel(dw / n, ndim, compute)
    k = k * per_channel(affine[0], ndim, compute) if given[0] else k
    return (u * k).astype(x.dtype), dw.astype(stored), db.astype(stored)


# -- batch norm on OpenCL devices --------------------------------------------------------------------------------------


def sizes_of(x: Tensor) -> tuple[int, int, int]:
    """(N, C, elements per sample and channel)."""
    return x.shape[0], x.shape[1], layout.size_of(x.shape[2:])


def _scalar(compute: DType) -> DType:
    return np.dtype(np.float64) if compute.itemsize == 8 else FLOAT32


def _affine_flags(weight: Optional, bias: Optional, activation: str | None, **more: Any) -> tuple[str, ...]:
    return flags_of(HAS_W=weight is not None, HAS_B=bias is not None, RELU=activation == "relu", **more)


def _gpu_form(x: Tensor, profile: DeviceProfile, *others: Tensor) -> tuple[dict[str, Any], int, DType]:
    """Defines of batch_norm_gpu.cl for `x`, vectors per (sample, channel), and the dtype of indices."""
    span = sizes_of(x)[2]
    vector = span % 4 == 0 and all(t.offset % 4 == 0 for t in (x, *others))
    limit = profile.group(GROUP)
    width = min(32, limit) if span == 1 else 1
    sizes = {"CT": width, "LANES": limit // width, "FINISH": min(FINISH, limit)}
    index = INT32 if x.size < 1 << 31 else INT64
    sizes |= gpu_vector(compute_dtype(x.dtype), vector) | {"I": "int" if index == INT32 else "long"}
    return sizes, span // (4 if vector else 1), index


def _splits(n: int, c: int, across: int, sizes: dict[str, Any], profile: DeviceProfile) -> tuple[int, int]:
    """(splits, vectors per split) of the n * across vectors of a channel: enough groups to fill the device."""
    total, blocks = n * across, -(-c // sizes["CT"])
    least = max(1, CHUNK // sizes["VEC"] // (sizes["CT"] if sizes["CT"] > 1 else 1))
    wanted = max(1, min(-(-4 * profile.compute_units // blocks), -(-total // max(least // 4, 1)), 256))
    chunk = -(-total // wanted)
    return -(-total // chunk), chunk


def _cpu_form(c: int, span: int, compute: DType, profile: DeviceProfile) -> tuple[dict[str, Any], int, bool]:
    """Defines of `batch_grad` on CPU devices, channels per work-item, and whether rows are shorter than a vector.

    Work-items read runs of NEAR elements where that leaves enough of them to share the work evenly.
    """
    found, most = cpu_vector(compute, profile), max(1, c // (4 * profile.compute_units))
    width = found["VW"]
    if span == 1:
        vectors = next((v for v in (4, 2) if v * width <= most * 2), 1)
        return found | {"CV": vectors}, vectors * width, False
    while width > max(span, 4):
        width //= 2
    block = next((b for b in (8, 4, 2) if b <= most and b * span <= NEAR), 1)
    return {"VECTOR": f"{C_NAME[compute]}{width}", "VW": width, "BLOCK": block}, block, span < width


def _train(
    queue: Any, x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], momentum: float, eps: float,
    activation: str | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    compute, profile = compute_dtype(x.dtype), profile_of(queue)
    n, c, span = sizes_of(x)
    dtype = parameter_dtype(compute, weight, bias)
    y, mean, rstd = allocate(queue, x.shape, x.dtype), allocate(queue, (c,), compute), allocate(queue, (c,), compute)
    w, b = prepared(weight, dtype, rstd), prepared(bias, dtype, rstd)
    running = [t.contiguous() for t in statistics] or [mean, rstd]
    flags = _affine_flags(weight, bias, activation, TRACK=statistics, COLUMNS=profile.kind == "cpu" and span == 1)
    scalars = (float(eps), float(momentum))
    if profile.kind == "cpu":
        vector, channels = cpu_vector(compute, profile), 1
        if span == 1:
            vector, channels, _ = _cpu_form(c, span, compute, profile)
        flags += stream_flag(y, span, compute, profile)
        text = source("batch_norm_cpu.cl", "BATCH", x.dtype, compute, dtype, flags, **vector)
        kernel = get_kernel(queue, text, "batch", [None] * 8 + [INT64] * 8 + [_scalar(compute)] * 2, OPTIONS)
        inputs = (*running, x, w, b)
        numbers = (*[t.offset for t in inputs], n, c, span, *scalars)
        launch(kernel, queue, (-(-c // channels),), (1,), *[t.buffer for t in (y, mean, rstd, *inputs)], *numbers)
    else:
        _gpu_statistics(queue, x, mean, rstd, running, dtype, flags, scalars)
        _gpu_apply(queue, y, mean, rstd, x, w, b, dtype, flags, eps)
    for t, moved in zip(statistics, running):
        if t is not moved:
            assign(t, moved)
    return y, mean, rstd


def _gpu_statistics(
    queue: Any, x: Tensor, mean: Tensor, rstd: Tensor, running: list[Tensor], dtype: DType, flags: tuple[str, ...],
    scalars: tuple[float, float],
) -> None:  # fmt: skip
    """Launch `moments` and `finish`."""
    compute, profile = mean.dtype, profile_of(queue)
    n, c, _ = sizes_of(x)
    sizes, across, index = _gpu_form(x, profile)
    splits, chunk = _splits(n, c, across, sizes, profile)
    parts = [allocate(queue, (splits, c), compute) for _ in range(2)]
    kept = tuple(f for f in flags if f == "TRACK")
    text = source("batch_norm_gpu.cl", "MOMENTS", x.dtype, compute, dtype, kept, **sizes)
    local = (sizes["CT"], sizes["LANES"])
    kernel = get_kernel(queue, text, "moments", [None] * 3 + [INT64] + [index] * 4, OPTIONS)
    global_size = (-(-c // local[0]) * local[0], splits * local[1])
    launch(kernel, queue, global_size, local, *[t.buffer for t in (*parts, x)], x.offset, n, c, across, chunk)
    types = [None] * 6 + [INT64] * 2 + [INT32] * 2 + [INT64] * 2 + [_scalar(compute)] * 2
    kernel = get_kernel(queue, text, "finish", types, OPTIONS)
    buffers = [t.buffer for t in (mean, rstd, *running, *parts)]
    numbers = (*[t.offset for t in running], splits, c, n * across * sizes["VEC"], chunk * sizes["VEC"])
    launch(kernel, queue, (c * sizes["FINISH"],), (sizes["FINISH"],), *buffers, *numbers, *scalars)


def _gpu_apply(
    queue: Any, y: Tensor, mean: Tensor, second: Tensor, x: Tensor, w: Tensor, b: Tensor, dtype: DType,
    flags: tuple[str, ...], eps: float,
) -> None:  # fmt: skip
    compute, profile = mean.dtype, profile_of(queue)
    sizes, across, index = _gpu_form(x, profile)
    kept = tuple(f for f in flags if f != "TRACK")
    text = source("batch_norm_gpu.cl", "APPLY", x.dtype, compute, dtype, kept, **sizes)
    kernel = get_kernel(queue, text, "apply", [None] * 6 + [INT64] * 5 + [index] * 3 + [_scalar(compute)], OPTIONS)
    tensors = (mean, second, x, w, b)
    vectors, group = x.size // sizes["VEC"], profile.group(GROUP)
    numbers = (*[t.offset for t in tensors], vectors, x.shape[1], across, float(eps))
    launch(kernel, queue, (-(-vectors // group) * group,), (group,), y.buffer, *[t.buffer for t in tensors], *numbers)


def _apply(
    queue: Any, x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], eps: float,
    activation: str | None,
) -> Tensor:  # fmt: skip
    compute, profile = compute_dtype(x.dtype), profile_of(queue)
    n, c, span = sizes_of(x)
    dtype = parameter_dtype(compute, weight, bias)
    y = allocate(queue, x.shape, x.dtype)
    if x.size == 0:
        return y
    mean, var = (t.contiguous() for t in statistics)
    w, b = prepared(weight, dtype, var), prepared(bias, dtype, var)
    if profile.kind != "cpu":
        _gpu_apply(queue, y, mean, var, x, w, b, dtype, _affine_flags(weight, bias, activation, VARIANCE=True), eps)
        return y
    vector = cpu_vector(compute, profile)
    flags = _affine_flags(weight, bias, activation, COLUMNS=span == 1) + stream_flag(y, span, compute, profile)
    text = source("batch_norm_cpu.cl", "APPLY", x.dtype, compute, dtype, flags, **vector)
    kernel = get_kernel(queue, text, "apply", [None] * 6 + [INT64] * 9 + [_scalar(compute)], OPTIONS)
    global_size: tuple[int, ...]
    if span == 1:
        step = split_rows(n, vector["VW"], profile.compute_units)
        global_size = (-(-c // vector["VW"]), -(-n // step))
    else:
        step = split_rows(n * c, span, profile.compute_units)
        global_size = (-(-n * c // step),)
    tensors = (mean, var, x, w, b)
    numbers = (*[t.offset for t in tensors], n, c, span, step, float(eps))
    launch(kernel, queue, global_size, (1,) * len(global_size), y.buffer, *[t.buffer for t in tensors], *numbers)
    return y


def _batch_grad(
    queue: Any, tensors: list[Tensor], weight: Optional, bias: Optional, needs: Needs, training: bool,
    activation: str | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    x, compute, profile = tensors[1], tensors[2].dtype, profile_of(queue)
    n, c, span = sizes_of(x)
    dtype = parameter_dtype(compute, weight, bias)
    w, b = prepared(weight, dtype, tensors[3]), prepared(bias, dtype, tensors[3])
    dx = allocate(queue, x.shape, x.dtype) if needs[0] else tensors[3]
    dw, db = allocate(queue, (c,), dtype), allocate(queue, (c,), dtype)
    flags = _affine_flags(weight, bias, activation, FIXED=not training)
    inputs = (tensors[0], x, w, b, *tensors[2:])
    if x.size == 0:
        dw.fill_(0)
        db.fill_(0)
    elif profile.kind == "cpu":
        vector, channels, short = _cpu_form(c, span, compute, profile)
        flags += flags_of(COLUMNS=span == 1, SHORT=short, DX=needs[0])
        flags += stream_flag(dx, span, compute, profile) if needs[0] else ()
        text = source("batch_norm_cpu.cl", "BATCH_GRAD", x.dtype, compute, dtype, flags, **vector)
        kernel = get_kernel(queue, text, "batch_grad", [None] * 9 + [INT64] * 9, OPTIONS)
        numbers = (*[t.offset for t in inputs], n, c, span)
        launch(kernel, queue, (-(-c // channels),), (1,), *[t.buffer for t in (dx, dw, db, *inputs)], *numbers)
    else:
        _gpu_batch_grad(queue, dx, dw, db, inputs, flags, needs[0])
    stored = compute if weight is None else weight.dtype
    return dx, dw.astype(stored), db.astype(stored)


def _gpu_batch_grad(
    queue: Any, dx: Tensor, dw: Tensor, db: Tensor, inputs: tuple[Tensor, ...], flags: tuple[str, ...], wanted: bool
) -> None:
    """Launch `grad_sums`, `grad_finish` and, when dx is wanted, `grad_apply`."""
    g, x, compute, profile = inputs[0], inputs[1], inputs[4].dtype, profile_of(queue)
    n, c, _ = sizes_of(x)
    sizes, across, index = _gpu_form(x, profile, g)
    splits, chunk = _splits(n, c, across, sizes, profile)
    part_u, part_h = allocate(queue, (splits, c), compute), allocate(queue, (splits, c), compute)
    sums = allocate(queue, (2, c), compute)
    form = (x.dtype, compute, dw.dtype, flags)
    text, last = (source("batch_norm_gpu.cl", use, *form, **sizes) for use in ("GRAD_SUMS", "GRAD_APPLY"))
    local = (sizes["CT"], sizes["LANES"])
    buffers, offsets = [t.buffer for t in inputs], [t.offset for t in inputs]
    kernel = get_kernel(queue, text, "grad_sums", [None] * 8 + [INT64] * 6 + [index] * 4, OPTIONS)
    global_size = (-(-c // local[0]) * local[0], splits * local[1])
    launch(kernel, queue, global_size, local, part_u.buffer, part_h.buffer, *buffers, *offsets, n, c, across, chunk)
    kernel = get_kernel(queue, text, "grad_finish", [None] * 5 + [INT32] * 2, OPTIONS)
    joined = [t.buffer for t in (sums, dw, db, part_u, part_h)]
    launch(kernel, queue, (c * sizes["FINISH"],), (sizes["FINISH"],), *joined, splits, c)
    if wanted:
        kernel = get_kernel(queue, last, "grad_apply", [None] * 8 + [INT64] * 6 + [index] * 3 + [INT64], OPTIONS)
        vectors, group = x.size // sizes["VEC"], profile.group(GROUP)
        numbers = (*offsets, vectors, c, across, n * across * sizes["VEC"])
        launch(kernel, queue, (-(-vectors // group) * group,), (group,), dx.buffer, sums.buffer, *buffers, *numbers)
