"""Batch norm over the channels (axis 1) of (N, C, ...), with gradients and an optional fused relu.

Sums run in float32 for half and float32, in double for double. Kernels: batch_norm_cpu.cl and batch_norm_gpu.cl.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netcl.core import layout, versions
from netcl.core.backend import cpu
from netcl.core.backend.opencl import launch
from netcl.core.backend.prepared import Run, prepare
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import C_NAME, FLOAT32, INT32, INT64, DType, compute_dtype
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.ops.elementwise import assign
from netcl.ops.normalization.norm import (
    OPTIONS,
    Needs,
    Optional,
    check_float,
    check_parameter,
    check_same,
    cpu_vector,
    flags_of,
    gpu_vector,
    known,
    layouts,
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
KEPT = 8  # vectors that a GPU's work-item keeps in registers while it sums
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
    key = ("batch_norm", training, activation, *layouts(x, weight, bias, running_mean, running_var))
    run = known(x.queue, key, weight, bias, running_mean, running_var)
    statistics = [t for t in (running_mean, running_var) if t is not None]
    if training and statistics:
        versions.wrote(*statistics, where="batch_norm")
    if run is None:
        _check_forward(x, weight, bias, statistics, training, activation)
        if x.backend == "cpu":
            return _numpy_batch(x, weight, bias, statistics, training, momentum, eps, activation)
        plan = _plan_train if training else _plan_apply
        run = x.queue.netcl_state.plans[key] = plan(x, weight, bias, statistics, activation)
    return run(x, weight, bias, statistics, momentum, eps)  # type: ignore[no-any-return]


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


def _check_forward(
    x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], training: bool, activation: str | None
) -> None:
    compute = _check_batch("batch_norm", x, weight, bias, activation)
    if len(statistics) == 1 or (not training and not statistics):
        raise ShapeError(f"batch_norm: expected running_mean and running_var, got {len(statistics)} of the two.")
    for t in statistics:
        check_parameter("batch_norm", "running statistics", t, x.shape[1:2])
        if t.dtype != compute:
            raise DTypeError(f"batch_norm: expected {compute} running statistics for {x.dtype}, got {t.dtype}.")
    same_queue("batch_norm", x, *statistics, *[p for p in (weight, bias) if p is not None])
    if training and x.size <= x.shape[1]:
        raise ShapeError(
            f"batch_norm: expected more than one value per channel in training, got shape {x.shape}; "
            "use a larger batch or eval mode."
        )


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
    index = INT32 if x.size < 1 << 30 else INT64  # ends of splits and of groups lie behind the last element
    sizes |= gpu_vector(compute_dtype(x.dtype), vector) | {"I": "int" if index == INT32 else "long"}
    return sizes, span // (4 if vector else 1), index


def _splits(n: int, c: int, across: int, sizes: dict[str, Any], profile: DeviceProfile) -> tuple[int, int]:
    """(splits, vectors per split) of the n * across vectors of a channel: enough groups to fill the device.

    There are up to 256, if that lets work-items keep their vectors.
    """
    total, blocks = n * across, -(-c // sizes["CT"])
    least = max(1, CHUNK // sizes["VEC"] // (sizes["CT"] if sizes["CT"] > 1 else 1))
    wanted = max(1, min(-(-4 * profile.compute_units // blocks), -(-total // max(least // 4, 1)), 256))
    held = -(-total // (KEPT * sizes["LANES"]))
    chunk = -(-total // max(wanted, held if held <= 256 else 1))
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


def _plan_train(
    x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], activation: str | None
) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """A function (x, weight, bias, running statistics, momentum, eps) giving (y, mean, rstd)."""
    compute, profile = compute_dtype(x.dtype), profile_of(x.queue)
    x, dtype = x.contiguous(), parameter_dtype(compute, weight, bias)
    flags = _affine_flags(weight, bias, activation)
    if profile.kind == "cpu":
        launched = _plan_cpu(x, compute, dtype, flags + flags_of(TRACK=statistics))
    else:
        moments, finish = _plan_statistics(x, compute, dtype, flags_of(TRACK=statistics))
        apply = _plan_gpu_apply(x, compute, dtype, flags)

        def launched(x: Tensor, w: Tensor, b: Tensor, rm: Tensor, rv: Tensor, eps: float, momentum: float) -> Any:
            mean, rstd = finish(*moments(x), rm, rv, eps, momentum)
            return *apply(x, w, b, mean, rstd, eps), mean, rstd

    def run(
        x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], momentum: float, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = x.contiguous()
        running = [t.contiguous() for t in statistics] or [x, x]
        made = launched(x, prepared(weight, dtype, x), prepared(bias, dtype, x), *running, float(eps), float(momentum))
        for t, moved in zip(statistics, running):
            if t is not moved:
                assign(t, moved)
        return made  # type: ignore[return-value]

    return run


def _plan_cpu(x: Tensor, compute: DType, dtype: DType, flags: tuple[str, ...]) -> Run:
    """(x, weight, bias, running mean and variance, eps, momentum) -> (y, mean, rstd) in one launch."""
    queue, profile = x.queue, profile_of(x.queue)
    n, c, span = sizes_of(x)
    vector, channels = cpu_vector(compute, profile), 1
    if span == 1:
        vector, channels, _ = _cpu_form(c, span, compute, profile)
    flags += flags_of(COLUMNS=span == 1) + stream_flag(x, span, compute, profile)
    text = source("batch_norm_cpu.cl", "BATCH", x.dtype, compute, dtype, flags, **vector)
    kernel = get_kernel(queue, text, "batch", [None] * 8 + [INT64] * 11 + [_scalar(compute)] * 2, OPTIONS)
    results = (x.shape, (c,), (c,)), (x.dtype, compute, compute)
    return prepare(kernel, queue, (-(-c // channels),), (1,), (n, c, span), 5, *results)


def _plan_statistics(x: Tensor, compute: DType, dtype: DType, flags: tuple[str, ...]) -> tuple[Run, Run]:
    """The launches of `moments`, x -> parts, and of `finish`, (parts, running, eps, momentum) -> (mean, rstd)."""
    queue, profile = x.queue, profile_of(x.queue)
    n, c, _ = sizes_of(x)
    sizes, across, index = _gpu_form(x, profile)
    splits, chunk = _splits(n, c, across, sizes, profile)
    sizes["PER"] = next((p for p in (KEPT // 2, KEPT) if chunk <= p * sizes["LANES"]), 0)
    text = source("batch_norm_gpu.cl", "MOMENTS", x.dtype, compute, dtype, flags, **sizes)
    local = (sizes["CT"], sizes["LANES"])
    grid = (-(-c // local[0]) * local[0], splits * local[1])
    kernel = get_kernel(queue, text, "moments", [None] * 3 + [INT64] * 3 + [index] * 4, OPTIONS)
    moments = prepare(kernel, queue, grid, local, (n, c, across, chunk), 1, ((splits, c),) * 2, (compute,) * 2)
    types = [None] * 6 + [INT64] * 6 + [INT32] * 2 + [INT64] * 2 + [_scalar(compute)] * 2
    kernel = get_kernel(queue, text, "finish", types, OPTIONS)
    constants = (splits, c, n * across * sizes["VEC"], chunk * sizes["VEC"])
    items = sizes["FINISH"]
    return moments, prepare(kernel, queue, (c * items,), (items,), constants, 4, ((c,),) * 2, (compute,) * 2)


def _plan_gpu_apply(x: Tensor, compute: DType, dtype: DType, flags: tuple[str, ...]) -> Run:
    """The launch of `apply`: (x, weight, bias, mean, second statistic, eps) -> y."""
    queue, profile = x.queue, profile_of(x.queue)
    sizes, across, index = _gpu_form(x, profile)
    text = source("batch_norm_gpu.cl", "APPLY", x.dtype, compute, dtype, flags, **sizes)
    kernel = get_kernel(queue, text, "apply", [None] * 6 + [INT64] * 6 + [index] * 3 + [_scalar(compute)], OPTIONS)
    vectors, group = x.size // sizes["VEC"], profile.group(GROUP)
    grid = (-(-vectors // group) * group,)
    return prepare(kernel, queue, grid, (group,), (vectors, x.shape[1], across), 5, (x.shape,), (x.dtype,))


def _plan_apply(
    x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], activation: str | None
) -> Callable[..., tuple[Tensor, None, None]]:
    """As `_plan_train`, with the running statistics in the place of the batch's."""
    queue, compute, profile = x.queue, compute_dtype(x.dtype), profile_of(x.queue)
    n, c, span = sizes_of(x)
    x, dtype = x.contiguous(), parameter_dtype(compute, weight, bias)
    flags = _affine_flags(weight, bias, activation)
    if x.size == 0:
        return lambda x, *_: (allocate(x.queue, x.shape, x.dtype), None, None)
    if profile.kind != "cpu":
        launched = _plan_gpu_apply(x, compute, dtype, (*flags, "VARIANCE"))
    else:
        vector = cpu_vector(compute, profile)
        flags += flags_of(COLUMNS=span == 1) + stream_flag(x, span, compute, profile)
        text = source("batch_norm_cpu.cl", "APPLY", x.dtype, compute, dtype, flags, **vector)
        kernel = get_kernel(queue, text, "apply", [None] * 6 + [INT64] * 10 + [_scalar(compute)], OPTIONS)
        grid: tuple[int, ...]
        if span == 1:
            step = split_rows(n, vector["VW"], profile.compute_units)
            grid = (-(-c // vector["VW"]), -(-n // step))
        else:
            step = split_rows(n * c, span, profile.compute_units)
            grid = (-(-n * c // step),)
        launched = prepare(kernel, queue, grid, (1,) * len(grid), (n, c, span, step), 5, (x.shape,), (x.dtype,))

    def run(x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], _: float, eps: float) -> Any:
        x, (mean, var) = x.contiguous(), (t.contiguous() for t in statistics)
        return *launched(x, prepared(weight, dtype, x), prepared(bias, dtype, x), mean, var, float(eps)), None, None

    return run


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
