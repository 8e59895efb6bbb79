"""Layer norm and RMS norm over trailing axes, with gradients.

Sums run in float32 for half and float32, in double for double. Kernels: norm_cpu.cl for CPU devices, norm_gpu.cl for
everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.backend.opencl import launch
from netcl.core.backend.prepared import prepare
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import C_NAME, FLOAT32, INT64, NARROW, DType, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.kernels import sources
from netcl.kernels.grid import width_of
from netcl.kernels.streaming import is_streamed
from netcl.runtime.cache import get_kernel

OPTIONS = ("-cl-mad-enable",)
ITEM = 16384  # elements a work-item of a CPU device should at least walk over
Needs = Sequence[bool]
Optional = Tensor | None


def layer_norm(
    x: Tensor, weight: Optional = None, bias: Optional = None, axes: Any = -1, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """y = (x - mean) * rstd * weight + bias over the trailing `axes`, rstd = 1 / sqrt(var + eps), var biased.

    Shapes: x (R..., n...); weight, bias (n...); returns y like x, mean and rstd (R...) in the compute dtype.
    Memory: two numbers per row are all that the backward pass needs besides x.
    Raises: ShapeError when `axes` are not the last ones or weight, bias do not fit; DTypeError for integers.
    Source: Ba et al. 2016, arXiv:1607.06450.
    """
    y, mean, rstd = _forward("layer_norm", x, weight, bias, axes, eps, False)
    return y, mean, rstd


def rms_norm(x: Tensor, weight: Optional = None, axes: Any = -1, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """y = x * rstd * weight over the trailing `axes`, rstd = 1 / sqrt(mean(x^2) + eps); eps stays in the compute dtype.

    Shapes: x (R..., n...); weight (n...); returns y like x and rstd (R...) in the compute dtype.
    Raises: ShapeError when `axes` are not the last ones or weight does not fit; DTypeError for integers.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    y, _, rstd = _forward("rms_norm", x, weight, None, axes, eps, True)
    return y, rstd


def layer_norm_grad(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Optional = None, needs: Needs = (True, True, True)
) -> tuple[Optional, Optional, Optional]:
    """(dx, dweight, dbias) of `layer_norm`, None where `needs` says so; mean and rstd are those of the forward pass.

    With h = (x - mean) rstd, u = g weight: dx = rstd (u - mean(u) - h mean(u h)), dweight = sum g h, dbias = sum g.
    dweight and dbias have weight's dtype (the compute dtype without one); their sums use no atomics and repeat exactly.
    """
    return _backward("layer_norm_grad", g, x, mean, rstd, weight, needs, False)


def rms_norm_grad(
    g: Tensor, x: Tensor, rstd: Tensor, weight: Optional = None, needs: Needs = (True, True)
) -> tuple[Optional, Optional]:
    """(dx, dweight) of `rms_norm`, None where `needs` says so.

    With h = x rstd, u = g weight: dx = rstd (u - h mean(u h)), dweight = sum g h.
    """
    return _backward("rms_norm_grad", g, x, None, rstd, weight, (*needs, False), True)[:2]


# -- checks ------------------------------------------------------------------------------------------------------------


def check_float(where: str, x: Tensor) -> DType:
    """The compute dtype of float tensor `x`. Raises DTypeError for other dtypes."""
    if not is_float(x.dtype):
        raise DTypeError(f"{where}: expected a float tensor, got {x.dtype}; use astype first.")
    return compute_dtype(x.dtype)


def check_same(where: str, name: str, g: Tensor, x: Tensor) -> None:
    """Raise unless gradient `g` has the shape of `x`."""
    if g.shape != x.shape:
        raise ShapeError(f"{where}: expected {name} of shape {x.shape} like x, got {g.shape}.")


def check_parameter(where: str, name: str, p: Optional, shape: Shape) -> None:
    """Raise unless weight or bias `p` is None or a float tensor of `shape`."""
    if p is None:
        return
    if p.shape != shape:
        raise ShapeError(f"{where}: expected {name} of shape {shape}, got {p.shape}.")
    if not is_float(p.dtype):
        raise DTypeError(f"{where}: expected a float {name}, got {p.dtype}; use astype first.")


def _first_axis(where: str, x: Tensor, axes: Any) -> int:
    """Where the normalised axes begin; they must be the last ones."""
    found = layout.as_axes(where, axes, x.ndim)
    first = x.ndim - len(found)
    if not found or found != tuple(range(first, x.ndim)):
        raise ShapeError(f"{where}: expected the last axes of shape {x.shape}, got axes {axes}; permute first.")
    return first


# -- what kernels see --------------------------------------------------------------------------------------------------


def parameter_dtype(compute: DType, *parameters: Optional) -> DType:
    """How kernels meet weight and bias: as they are where all are of one narrow type, else in the compute dtype."""
    given = {p.dtype for p in parameters if p is not None}
    return given.pop() if len(given) == 1 and compute == FLOAT32 and given <= {*NARROW} else compute


def prepared(p: Optional, dtype: DType, stand_in: Tensor) -> Tensor:
    """`p` contiguous in `dtype`; a stand-in that is not read when it is None."""
    return stand_in if p is None else p.astype(dtype).contiguous()


@lru_cache(maxsize=1024)
def source(
    file: str, use: str, stored: DType, compute: DType, parameters: DType, flags: tuple[str, ...], **sizes: Any
) -> str:
    """The kernels `use` of `file` for these element types; `flags` become defines without a value."""
    defines: dict[str, Any] = {**dict.fromkeys(flags, 1), f"USE_{use}": 1}
    defines |= {"S": C_NAME[stored], "E": C_NAME[compute], "W": C_NAME[parameters], **sizes}
    shared = ("memory.cl", "norms_cpu.cl") if file.endswith("_cpu.cl") else ("norms_gpu.cl",)
    return sources.load(*shared, file, **defines)


def stream_flag(out: Tensor, row: int, compute: DType, profile: DeviceProfile) -> tuple[str, ...]:
    """STREAM where the rows of a new result are written past a CPU's caches."""
    return flags_of(STREAM=is_streamed(profile, out.shape, row, out.dtype, compute))


def cpu_vector(compute: DType, profile: DeviceProfile) -> dict[str, Any]:
    """Defines of the vector that fills a CPU's registers."""
    width = width_of(compute, profile.vector)
    return {"VECTOR": f"{C_NAME[compute]}{width}", "VW": width}


def gpu_vector(compute: DType, vector: bool) -> dict[str, Any]:
    """Defines of a GPU's vector: four elements, or one where lengths or offsets do not allow four."""
    return {"VECTOR": f"{C_NAME[compute]}{4 if vector else ''}", "VEC": 4 if vector else 1}


def power_of_two(n: int) -> int:
    """The smallest power of two of at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def row_group(n: int, vec: int, profile: DeviceProfile) -> dict[str, int]:
    """Work-items per row (WG), rows per group (ROWS) and vectors per work-item (PER) for rows of `n` elements.

    PER 0 stands for rows that do not fit in registers. Few values keep the number of programs small.
    """
    limit = profile.group(256)
    vectors = -(-n // vec)
    items = min(limit, max(min(32, limit), power_of_two(-(-vectors // 4))))
    per = next((p for p in (1, 4, 8) if vectors <= p * items), 0)
    return {"WG": items, "ROWS": max(1, limit // items), "PER": per}


def flags_of(**present: Any) -> tuple[str, ...]:
    """The names whose value is true."""
    return tuple(name for name, value in present.items() if value)


def split_rows(rows: int, n: int, units: int) -> int:
    """Rows per work-item on a CPU device: enough to be worth a launch, few enough to keep all units busy."""
    return max(1, min(-(-ITEM // max(n, 1)), -(-rows // (8 * units))))


def partial_rows(rows: int, units: int) -> int:
    """Rows per work-item of a CPU device where every work-item keeps partial sums."""
    return max(1, -(-rows // (16 * units)))


# -- forward -----------------------------------------------------------------------------------------------------------


def _forward(
    where: str, x: Tensor, weight: Optional, bias: Optional, axes: Any, eps: float, rms: bool
) -> tuple[Tensor, Tensor, Tensor]:
    axes = tuple(axes) if isinstance(axes, list) else axes
    key = (where, axes, *layouts(x, weight, bias))
    run = known(x.queue, key, weight, bias)
    if run is None:
        compute = check_float(where, x)
        first = _first_axis(where, x, axes)
        check_parameter(where, "weight", weight, x.shape[first:])
        check_parameter(where, "bias", bias, x.shape[first:])
        same_queue(where, x, *[p for p in (weight, bias) if p is not None])
        if x.backend == "cpu":
            tensors = [t for t in (x, weight, bias) if t is not None]
            given = (weight is not None, bias is not None)
            found: tuple[Tensor, Tensor, Tensor]
            found = cpu.compute(numpy_norm, *tensors, first=first, eps=float(eps), rms=rms, given=given)
            return found
        lead, n = x.shape[:first], layout.size_of(x.shape[first:])
        run = plan_rows(x, weight, bias, compute, lead, n, (1, 0, 1), flags_of(RMS=rms))
        x.queue.netcl_state.plans[key] = run
    return run(x, weight, bias, eps)  # type: ignore[no-any-return]


def layouts(*tensors: Optional) -> tuple[Any, ...]:
    """What the plan of a norm depends on."""
    return tuple([None if t is None else (t.shape, t.strides, t.dtype, t.offset & 3) for t in tensors])


def known(queue: Any, key: tuple[Any, ...], *others: Optional) -> Any:
    """The plan kept under `key`, None where there is none or `others` are on another queue."""
    run = queue.netcl_state.plans.get(key)
    return run if run is None or all(t is None or t.queue is queue for t in others) else None


def plan_rows(
    x: Tensor, weight: Optional, bias: Optional, compute: DType, lead: Shape, n: int, channels: tuple[int, int, int],
    flags: tuple[str, ...],
) -> Callable[[Tensor, Optional, Optional, float], tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """`norm` over rows of `n`, as many as `lead` says: a function (x, weight, bias, eps) giving (y, mean, rstd).

    Group norm's `channels` = (groups, channels per row, elements per channel). RMS leaves the mean unwritten.
    """
    queue, rows = x.queue, layout.size_of(lead)
    shapes, dtypes = (x.shape, lead, lead), (x.dtype, compute, compute)
    if rows * n == 0:
        return lambda x, *_: tuple([allocate(queue, s, t).fill_(0) for s, t in zip(shapes, dtypes)])  # type: ignore[return-value]
    dtype = parameter_dtype(compute, weight, bias)
    tensors = x.contiguous(), *(prepared(p, dtype, x) for p in (weight, bias))
    flags = flags + flags_of(HAS_W=weight is not None, HAS_B=bias is not None)
    profile, span = profile_of(queue), channels[2] if "CHANNELS" in flags else n
    grid: tuple[int, ...]
    local: tuple[int, ...]
    constants: tuple[int, ...]
    if profile.kind == "cpu":
        flags += stream_flag(x, span, compute, profile)
        text = source("norm_cpu.cl", "NORM", x.dtype, compute, dtype, flags, **cpu_vector(compute, profile))
        step = split_rows(rows, n, profile.compute_units)
        grid, local, constants = (-(-rows // step),), (1,), (rows, n, step, *channels)
    else:
        vector = span % 4 == 0 and all(t.offset % 4 == 0 for t in tensors)
        sizes = row_group(n, 4 if vector else 1, profile)
        text = source("norm_gpu.cl", "NORM", x.dtype, compute, dtype, flags, **gpu_vector(compute, vector), **sizes)
        local = (sizes["WG"], sizes["ROWS"])
        grid, constants = (local[0] * -(-rows // local[1]), local[1]), (rows, n, *channels)
    scalar = np.dtype(np.float64) if compute.itemsize == 8 else FLOAT32
    types = [*[None] * 6, *[INT64] * (6 + len(constants)), scalar]
    kernel = get_kernel(queue, text, "norm", types, OPTIONS)
    launched = prepare(kernel, queue, grid, local, constants, 3, shapes, dtypes)

    def run(x: Tensor, weight: Optional, bias: Optional, eps: float) -> Any:
        x = x.contiguous()
        return launched(x, prepared(weight, dtype, x), prepared(bias, dtype, x), float(eps))

    return run


def numpy_norm(
    x: np.ndarray, *affine: np.ndarray, first: int, eps: float, rms: bool, given: tuple[bool, bool]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The NumPy form of the forward pass: y, mean (rms: a copy of rstd), rstd."""
    compute = compute_dtype(x.dtype)
    axes = tuple(range(first, x.ndim))
    v = x.astype(compute, copy=False)
    if not rms:
        mean = v.sum(axis=axes, keepdims=True) / compute.type(max(layout.size_of(x.shape[first:]), 1))
        v = v - mean
    rest = max(layout.size_of(x.shape[first:]), 1)
    rstd = 1 / np.sqrt((v * v).sum(axis=axes, keepdims=True) / compute.type(rest) + compute.type(eps))
    y = v * rstd
    parameters = list(affine)
    if given[0]:
        y = y * parameters.pop(0).astype(compute, copy=False)
    if given[1]:
        y = y + parameters.pop(0).astype(compute, copy=False)
    rstd = rstd.reshape(x.shape[:first])
    return y.astype(x.dtype), rstd.copy() if rms else mean.reshape(x.shape[:first]), rstd


# -- backward ----------------------------------------------------------------------------------------------------------


def _backward(
    where: str, g: Tensor, x: Tensor, mean: Optional, rstd: Tensor, weight: Optional, needs: Needs, rms: bool
) -> tuple[Optional, Optional, Optional]:
    compute = check_float(where, x)
    check_same(where, "g", g, x)
    first = rstd.ndim
    if x.shape[:first] != rstd.shape or (mean is not None and mean.shape != rstd.shape):
        raise ShapeError(f"{where}: expected mean and rstd for the leading axes of {x.shape}, got {rstd.shape}.")
    check_parameter(where, "weight", weight, x.shape[first:])
    queue = same_queue(where, g, x, rstd, *[t for t in (mean, weight) if t is not None])
    needs = tuple(bool(n) for n in needs)
    if not any(needs):
        return None, None, None
    if x.backend == "cpu":
        tensors = [t for t in (g, x, rstd, mean, weight) if t is not None]
        found = cpu.compute(numpy_norm_grad, *tensors, rms=rms, weighted=weight is not None, needs=needs)
    else:
        found = _opencl_grad(queue, g.astype(x.dtype), x, mean, rstd, weight, needs, compute)
    results = list(found if isinstance(found, tuple) else (found,))
    return tuple(results.pop(0) if need else None for need in needs)  # type: ignore[return-value]


def _opencl_grad(
    queue: Any, g: Tensor, x: Tensor, mean: Optional, rstd: Tensor, weight: Optional, needs: Needs, compute: DType
) -> tuple[Tensor, ...]:
    first = rstd.ndim
    rows, n = layout.size_of(x.shape[:first]), layout.size_of(x.shape[first:])
    g, x, rstd = g.contiguous(), x.contiguous(), rstd.contiguous()
    mean = rstd if mean is None else mean.contiguous()
    stored = compute if weight is None else weight.dtype
    dtype = parameter_dtype(compute, weight)
    w = prepared(weight, dtype, rstd)
    flags = flags_of(RMS=mean is rstd, HAS_W=weight is not None, DX=needs[0], DW=needs[1], DB=needs[2])
    dx = allocate(queue, x.shape, x.dtype) if needs[0] else rstd
    outs = [allocate(queue, x.shape[first:], dtype) for need in needs[1:] if need]
    if rows * n == 0:
        for out in outs:
            out.fill_(0)
    else:
        parts, count = _launch_grad(queue, dx, g, x, w, mean, rstd, rows, n, flags, dtype)
        if outs:
            run_columns(queue, outs, [p for p, need in zip(parts, needs[1:]) if need], count, compute, dtype)
    return (*([dx] if needs[0] else []), *[out.astype(stored) for out in outs])


def _launch_grad(
    queue: Any, dx: Tensor, g: Tensor, x: Tensor, w: Tensor, mean: Tensor, rstd: Tensor, rows: int, n: int,
    flags: tuple[str, ...], dtype: DType,
) -> tuple[list[Tensor], int]:  # fmt: skip
    """Launch `norm_grad`; returns the partial sums of dweight and dbias (stand-ins if not needed) and their rows."""
    compute, profile = rstd.dtype, profile_of(queue)
    tensors = (g, x, w, mean, rstd)
    vector = n % 4 == 0 and all(t.offset % 4 == 0 for t in (g, x, w))
    global_size: tuple[int, ...]
    local: tuple[int, ...]
    extra: tuple[int, ...]
    if profile.kind == "cpu":
        step = partial_rows(rows, profile.compute_units)
        parts = -(-rows // step)
        flags += stream_flag(dx, n, compute, profile)
        text = source("norm_cpu.cl", "NORM_GRAD", x.dtype, compute, dtype, flags, **cpu_vector(compute, profile))
        types = [None] * 8 + [INT64] * 8
        global_size, local, extra = (parts,), (1,), (step,)
    else:
        sizes = row_group(n, 4 if vector else 1, profile)
        groups = min(-(-rows // sizes["ROWS"]), 4 * profile.compute_units)
        parts = groups * sizes["ROWS"]
        form = gpu_vector(compute, vector)
        text = source("norm_gpu.cl", "NORM_GRAD", x.dtype, compute, dtype, flags, **form, **sizes)
        types = [None] * 8 + [INT64] * 10
        local = (sizes["WG"], sizes["ROWS"])
        global_size, extra = (local[0] * groups, local[1]), (1, 0, 1)
    sums = [allocate(queue, (parts, n), compute) if flag in flags else rstd for flag in ("DW", "DB")]
    launch(
        get_kernel(queue, text, "norm_grad", types, OPTIONS), queue, global_size, local,
        *[t.buffer for t in (dx, *sums)], *[t.buffer for t in tensors], *[t.offset for t in tensors], rows, n, *extra,
    )  # fmt: skip
    return sums, parts


def run_columns(
    queue: Any, outs: Sequence[Tensor], parts: Sequence[Tensor], count: int, compute: DType, dtype: DType
) -> None:
    """Second stage of dweight and dbias: each of `outs` (n,) is the sum of the `count` rows of its part (count, n)."""
    profile = profile_of(queue)
    n = outs[0].size
    types = [None] * 4 + [INT64] * 2
    global_size: tuple[int, ...]
    local: tuple[int, ...]
    if profile.kind == "cpu":
        text = source("norm_cpu.cl", "COLUMNS", compute, compute, dtype, (), **cpu_vector(compute, profile))
        global_size, local = (-(-n // 64), len(outs)), (1, 1)
    else:
        limit = profile.group(256)
        width = min(32, limit)
        sizes = {"WIDTH": width, "LANES": max(1, limit // width), "WG": limit, "PER": 0}
        text = source("norm_gpu.cl", "COLUMNS", compute, compute, dtype, (), **gpu_vector(compute, False), **sizes)
        local = (width, sizes["LANES"], 1)
        global_size = (-(-n // width) * width, sizes["LANES"], len(outs))
    buffers = [outs[0].buffer, outs[-1].buffer, parts[0].buffer, parts[-1].buffer]
    launch(get_kernel(queue, text, "columns", types, OPTIONS), queue, global_size, local, *buffers, count, n)


def numpy_norm_grad(
    g: np.ndarray, x: np.ndarray, rstd: np.ndarray, *rest: np.ndarray, rms: bool, weighted: bool, needs: Needs
) -> Any:
    """The NumPy form of the backward pass: those of dx, dweight, dbias that are needed."""
    compute, first = compute_dtype(x.dtype), rstd.ndim
    parameters = list(rest)
    tail = (1,) * (x.ndim - first)
    axes, lead = tuple(range(first, x.ndim)), tuple(range(first))
    u, scale = g.astype(compute, copy=False), rstd.reshape(rstd.shape + tail)
    h = x.astype(compute, copy=False)
    h = h * scale if rms else (h - parameters.pop(0).reshape(scale.shape)) * scale
    weight = parameters.pop(0) if weighted else None
    stored = compute if weight is None else weight.dtype
    results = []
    if needs[1]:
        dw = (u * h).sum(axis=lead).astype(stored)
    if needs[2]:
        db = u.sum(axis=lead).astype(stored)
    if needs[0]:
        u = u if weight is None else u * weight.astype(compute, copy=False)
        n = compute.type(max(layout.size_of(x.shape[first:]), 1))
        dx = u - h * ((u * h).sum(axis=axes, keepdims=True) / n)
        dx = dx if rms else dx - u.sum(axis=axes, keepdims=True) / n
        results.append((dx * scale).astype(x.dtype))
    results += [dw] if needs[1] else []
    results += [db] if needs[2] else []
    return tuple(results)
