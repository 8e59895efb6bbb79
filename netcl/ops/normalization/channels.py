"""Plans of batch norm. Kernels: batch_norm_cpu.cl for CPU devices, batch_norm_gpu.cl for everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import C_NAME, DType
from netcl.core.protocols import Launch
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import route
from netcl.kernels.route import declare, kept
from netcl.ops.elementwise import assign
from netcl.ops.normalization.grid import ByName, by_name, cpu_vector, gpu_vector, kernel, split_rows, stream_flag
from netcl.ops.normalization.problem import (
    Needs,
    Normed,
    Optional,
    Types,
    begins_aligned,
    flags_of,
    prepared,
    sizes_of,
    types_of,
)

BATCH_NORM = declare("batch_norm", "registers", "passes")
ELEMENTS_PER_GROUP = 8192  # of a channel, that a GPU's group sums
ITEMS_PER_GROUP = 256  # of the elementwise kernels
ELEMENTS_PER_BLOCK = 4096  # of a sample's neighbouring channels, at most, that a CPU device's work-item takes
VECTORS_PER_ITEM = 8  # that a GPU's work-item keeps in registers while it sums
ITEMS_PER_CHANNEL = 32  # that join its partial sums

Forward = Callable[[Tensor, Optional, Optional, list[Tensor], float, float], tuple[Tensor, Optional, Optional]]
Backward = Callable[
    [Tensor, Tensor, Tensor, Tensor, Optional, Optional], tuple[Optional, Optional, Optional]
]  # of g, x, mean, rstd, weight and bias


def plan_train(
    x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], activation: str | None
) -> Forward:
    """(x, weight, bias, running statistics, momentum, eps) -> (y, mean, rstd)."""
    types, flags = types_of(x, weight, bias), _affine_flags(weight, bias, activation)
    if profile_of(x.queue).kind == "cpu":
        launch = _cpu_train(x, types, flags + flags_of(TRACK=statistics))
    else:
        launch = _gpu_train(x, types, flags, flags_of(TRACK=statistics))

    def run(
        x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], momentum: float, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = x.contiguous()
        rm, rv = running = [t.contiguous() for t in statistics] or [x, x]
        w, b = prepared(weight, types.parameters, x), prepared(bias, types.parameters, x)
        made: Normed = launch(x=x, w=w, b=b, rm=rm, rv=rv, eps=float(eps), momentum=float(momentum))
        for t, moved in zip(statistics, running):
            if t is not moved:
                assign(t, moved)
        return made

    return run


def plan_apply(
    x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], activation: str | None
) -> Forward:
    """As `plan_train`, with the running statistics in the place of the batch's."""
    types, flags = types_of(x, weight, bias), _affine_flags(weight, bias, activation)
    if x.size == 0:
        return lambda x, *_: (allocate(x.queue, x.shape, x.dtype), None, None)
    if profile_of(x.queue).kind == "cpu":
        launch = _cpu_apply(x, types, flags)
    else:
        launch = _gpu_apply(x, types, (*flags, "VARIANCE"))

    def run(x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], _: float, eps: float) -> Any:
        x, (mean, var) = x.contiguous(), (t.contiguous() for t in statistics)
        w, b = prepared(weight, types.parameters, x), prepared(bias, types.parameters, x)
        return launch(x=x, w=w, b=b, mean=mean, spread=var, eps=float(eps)), None, None

    return run


def plan_backward(
    g: Tensor, x: Tensor, weight: Optional, bias: Optional, needs: Needs, training: bool, activation: str | None
) -> Backward:
    """(g, x, mean, rstd, weight, bias) -> those of dx, dweight and dbias that `needs` names."""
    bias = bias if activation else None
    queue, types, c = x.queue, types_of(x, weight, bias), x.shape[1]
    stored = types.compute if weight is None else weight.dtype
    if x.size == 0:
        zeros = ((x.shape, x.dtype), ((c,), stored), ((c,), stored))
        return lambda *_: tuple([allocate(queue, *of).fill_(0) if need else None for of, need in zip(zeros, needs)])
    flags = _affine_flags(weight, bias, activation, FIXED=not training)
    plan = _cpu_grad if profile_of(queue).kind == "cpu" else _gpu_grad
    grads = plan(g, x, types, flags, needs[0])

    def run(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Optional, bias: Optional) -> Any:
        mean, rstd = prepared(mean, types.compute, mean), prepared(rstd, types.compute, rstd)
        w, b = prepared(weight, types.parameters, rstd), prepared(bias if activation else None, types.parameters, rstd)
        found = grads(g=prepared(g, types.stored, g), x=x.contiguous(), w=w, b=b, mean=mean, rstd=rstd)
        dw, db = (found[name].astype(stored) if need else None for name, need in zip(("dw", "db"), needs[1:]))
        return found.get("dx"), dw, db

    return run


def _affine_flags(weight: Optional, bias: Optional, activation: str | None, **more: Any) -> tuple[str, ...]:
    return flags_of(HAS_W=weight is not None, HAS_B=bias is not None, RELU=activation == "relu", **more)


# -- CPU devices -------------------------------------------------------------------------------------------------------


def _cpu_tile(c: int, span: int, compute: DType, profile: DeviceProfile) -> tuple[dict[str, Any], int, bool]:
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
    block = next((b for b in (8, 4, 2) if b <= most and b * span <= ELEMENTS_PER_BLOCK), 1)
    return {"VECTOR": f"{C_NAME[compute]}{width}", "VW": width, "BLOCK": block}, block, span < width


def _dims(x: Tensor, step: int = 0) -> dict[str, int]:
    """The fields of Dims in batch_norm_cpu.cl."""
    return {**dict(zip(("N", "C", "span"), sizes_of(x))), "step": step}


def _cpu_train(x: Tensor, types: Types, flags: tuple[str, ...]) -> Launch[Normed]:
    """The launch that makes (y, mean, rstd)."""
    (_, c, span), profile = sizes_of(x), profile_of(x.queue)
    vector, channels = cpu_vector(types.compute, profile), 1
    if route.special:
        route.sole(BATCH_NORM, "passes")
    if span == 1:
        vector, channels, _ = _cpu_tile(c, span, types.compute, profile)
    flags += flags_of(COLUMNS=span == 1) + stream_flag(x.shape, span, types, profile)
    new = {"y": (x.shape, x.dtype), "mean": ((c,), types.compute), "rstd": ((c,), types.compute)}
    made = kernel(x.queue, "batch_norm_cpu.cl", "batch", types, flags, **vector)
    return made.bind((-(-c // channels),), (1,), new, D=_dims(x))


def _cpu_apply(x: Tensor, types: Types, flags: tuple[str, ...]) -> Launch[Tensor]:
    """The launch that makes y from given statistics."""
    (n, c, span), profile = sizes_of(x), profile_of(x.queue)
    vector = cpu_vector(types.compute, profile)
    flags += flags_of(COLUMNS=span == 1) + stream_flag(x.shape, span, types, profile)
    made = kernel(x.queue, "batch_norm_cpu.cl", "apply", types, flags, **vector)
    grid: tuple[int, ...]
    if span == 1:
        step = split_rows(n, vector["VW"], profile.compute_units)
        grid = (-(-c // vector["VW"]), -(-n // step))
    else:
        step = split_rows(n * c, span, profile.compute_units)
        grid = (-(-n * c // step),)
    return made.bind(grid, (1,) * len(grid), {"y": (x.shape, x.dtype)}, D=_dims(x, step))


def _cpu_grad(_: Tensor, x: Tensor, types: Types, flags: tuple[str, ...], wanted: bool) -> Launch[ByName]:
    """The launch that makes dw, db and, where it is wanted, dx."""
    (_n, c, span), profile = sizes_of(x), profile_of(x.queue)
    vector, channels, short = _cpu_tile(c, span, types.compute, profile)
    flags += flags_of(COLUMNS=span == 1, SHORT=short, DX=wanted)
    flags += stream_flag(x.shape, span, types, profile) if wanted else ()
    new = {"dx": (x.shape, x.dtype)} if wanted else {}
    new |= dict.fromkeys(("dw", "db"), ((c,), types.parameters))
    made = kernel(x.queue, "batch_norm_cpu.cl", "batch_grad", types, flags, **vector)
    return by_name(made, (-(-c // channels),), (1,), new, D=_dims(x))


# -- GPUs --------------------------------------------------------------------------------------------------------------


def _gpu_tile(x: Tensor, types: Types, *others: Tensor) -> tuple[dict[str, Any], dict[str, int]]:
    """Defines of batch_norm_gpu.cl for `x`, and the fields of its Dims."""
    (n, c, span), profile = sizes_of(x), profile_of(x.queue)
    vector = span % 4 == 0 and all(begins_aligned(t, x.dtype) for t in (x, *others))
    limit = profile.group(ITEMS_PER_GROUP)
    width = min(32, limit) if span == 1 else 1
    sizes: dict[str, Any] = {
        "CT": width,
        "LANES": limit // width,
        "FINISH": min(ITEMS_PER_CHANNEL, limit),
    } | gpu_vector(types.compute, vector)
    sizes["I"] = "int" if x.size < 1 << 30 else "long"  # ends of splits and groups lie behind the last element
    across = span // sizes["VEC"]
    splits, chunk = _splits(n, c, across, sizes, profile)
    dims = {"N": n, "C": c, "across": across, "chunk": chunk, "splits": splits, "vectors": x.size // sizes["VEC"]}
    return sizes, dims


def _splits(n: int, c: int, across: int, sizes: dict[str, Any], profile: DeviceProfile) -> tuple[int, int]:
    """(splits, vectors per split) of the n * across vectors of a channel: enough groups to fill the device.

    There are up to 256, if that lets work-items keep their vectors.
    """
    total, blocks = n * across, -(-c // sizes["CT"])
    least = max(1, ELEMENTS_PER_GROUP // sizes["VEC"] // (sizes["CT"] if sizes["CT"] > 1 else 1))
    wanted = max(1, min(-(-4 * profile.compute_units // blocks), -(-total // max(least // 4, 1)), 256))
    held = -(-total // (VECTORS_PER_ITEM * sizes["LANES"]))
    chunk = -(-total // max(wanted, held if held <= 256 else 1))
    return -(-total // chunk), chunk


def _split_grid(sizes: dict[str, Any], dims: dict[str, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Grid and group of the kernels that sum over a split of some channels."""
    width, lanes = sizes["CT"], sizes["LANES"]
    return (-(-dims["C"] // width) * width, dims["splits"] * lanes), (width, lanes)


def _flat_grid(x: Tensor, dims: dict[str, int]) -> tuple[tuple[int], tuple[int]]:
    """Grid and group of the kernels whose work-items take one vector."""
    group = profile_of(x.queue).group(ITEMS_PER_GROUP)
    return (-(-dims["vectors"] // group) * group,), (group,)


def _gpu_train(x: Tensor, types: Types, flags: tuple[str, ...], track: tuple[str, ...]) -> Launch[Normed]:
    """The launches of `moments`, `finish` and `apply`, which make (y, mean, rstd)."""
    sizes, dims = _gpu_tile(x, types)
    counts = (VECTORS_PER_ITEM // 2, VECTORS_PER_ITEM)
    sizes["PER"] = kept(BATCH_NORM, next((p for p in counts if dims["chunk"] <= p * sizes["LANES"]), 0))
    one, parts = ((dims["C"],), types.compute), ((dims["splits"], dims["C"]), types.compute)
    made = kernel(x.queue, "batch_norm_gpu.cl", "moments", types, track, **sizes)
    moments = made.bind(*_split_grid(sizes, dims), dict.fromkeys(("part_m", "part_s"), parts), D=dims)
    made = kernel(x.queue, "batch_norm_gpu.cl", "finish", types, track, "MOMENTS", **sizes)
    items = sizes["FINISH"]
    finish = made.bind((dims["C"] * items,), (items,), {"mean": one, "rstd": one}, D=dims)
    apply = _gpu_apply(x, types, flags)

    def run(x: Tensor, w: Tensor, b: Tensor, rm: Tensor, rv: Tensor, eps: float, momentum: float) -> Any:
        part_m, part_s = moments(x=x)
        mean, rstd = finish(part_m=part_m.buffer, part_s=part_s.buffer, rm=rm, rv=rv, eps=eps, momentum=momentum)
        return apply(x=x, w=w, b=b, mean=mean, spread=rstd, eps=eps), mean, rstd

    return run


def _gpu_apply(x: Tensor, types: Types, flags: tuple[str, ...]) -> Launch[Tensor]:
    """The launch of `apply`, which makes y."""
    sizes, dims = _gpu_tile(x, types)
    made = kernel(x.queue, "batch_norm_gpu.cl", "apply", types, flags, **sizes)
    return made.bind(*_flat_grid(x, dims), {"y": (x.shape, x.dtype)}, D=dims)


def _gpu_grad(g: Tensor, x: Tensor, types: Types, flags: tuple[str, ...], wanted: bool) -> Launch[ByName]:
    """The launches of `grad_sums`, `grad_finish` and, where dx is wanted, `grad_apply`."""
    sizes, dims = _gpu_tile(x, types, g)
    parts, one = ((dims["splits"], dims["C"]), types.compute), ((dims["C"],), types.parameters)
    made = kernel(x.queue, "batch_norm_gpu.cl", "grad_sums", types, flags, **sizes)
    grad_sums = made.bind(*_split_grid(sizes, dims), dict.fromkeys(("part_u", "part_h"), parts), D=dims)
    made = kernel(x.queue, "batch_norm_gpu.cl", "grad_finish", types, flags, "GRAD_SUMS", **sizes)
    items, new = sizes["FINISH"], {"sums": ((2, dims["C"]), types.compute), "dw": one, "db": one}
    finish = made.bind((dims["C"] * items,), (items,), new, D=dims)
    apply = None
    if wanted:
        made = kernel(x.queue, "batch_norm_gpu.cl", "grad_apply", types, flags, **sizes)
        apply = made.bind(*_flat_grid(x, dims), {"dx": (x.shape, x.dtype)}, D=dims)

    def run(**given: Tensor) -> dict[str, Tensor]:
        part_u, part_h = grad_sums(**given)
        sums, dw, db = finish(part_u=part_u.buffer, part_h=part_h.buffer)
        found = {"dw": dw, "db": db}
        return found | {"dx": apply(sums=sums.buffer, **given)} if apply else found

    return run
