"""Matrix products: `matmul` (NumPy semantics), `linear` with a fused epilogue, and `gemm`, which both stand on.

`gemm` describes the product once (`Product`: sizes, strides, batch axes), and hands it to the kernel family of the
device. Transposed, sliced and broadcast operands are read in place; only their strides differ.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from netcl.core import layout, versions
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import common_dtype, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.kernels import route
from netcl.ops.elementwise import apply, assign, cast, contiguous
from netcl.ops.product.host import numpy_gemm
from netcl.ops.product.plan import plan_of
from netcl.ops.product.problem import ACTIVATIONS, MATMUL, Call, Run, describe


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product by NumPy's rules.

    y[.., i, j] = sum_k a[.., i, k] b[.., k, j]

    Shapes: a (.., M, K), b (.., K, N) with leading axes that broadcast -> (.., M, N). A 1-D operand is a row on the
    left, a column on the right, and its axis is absent from the result; two 1-D operands give shape ().
    Dtypes promote as in NumPy; half is summed in float.
    Raises: ShapeError for unequal K, leading axes that do not broadcast, or an operand without axes.
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.queue is b.queue):
        same_queue("matmul", a, b)
    product_shape(a.shape, b.shape)
    a, b = promote(a, b)
    if len(a.shape) == 2 == len(b.shape):
        return gemm(a, b)
    left, right = a.unsqueeze(0) if a.ndim == 1 else a, b.unsqueeze(1) if b.ndim == 1 else b
    y = gemm(left, right)
    if b.ndim == 1:
        y = y.squeeze(-1)
    return y.squeeze(-2 if b.ndim > 1 else -1) if a.ndim == 1 else y


@lru_cache(maxsize=4096)
def product_shape(a: layout.Shape, b: layout.Shape) -> layout.Shape:
    """The shape of `matmul`'s result. Raises ShapeError for operands that do not fit."""
    if not a or not b or a[-1] != b[0 if len(b) == 1 else -2]:
        raise ShapeError(f"matmul: expected a (.., M, K) and b (.., K, N) with equal K, got {a} and {b}.")
    batch: layout.Shape = ()
    if max(len(a), len(b)) > 2:
        batch = layout.broadcast("matmul (leading axes)", a[:-2], b[:-2])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


@lru_cache(maxsize=4096)
def affine_shape(x: layout.Shape, w: layout.Shape, b: layout.Shape | None) -> layout.Shape:
    """The shape of `linear`'s result. Raises ShapeError for operands that do not fit."""
    if len(w) != 2 or not x or x[-1] != w[1]:
        raise ShapeError(f"linear: expected x (.., K) and w (N, K) with equal K, got {x} and {w}.")
    if b is not None and b != (w[0],):
        raise ShapeError(f"linear: expected a bias of shape ({w[0]},), got {b}.")
    return (*x[:-1], w[0])


def linear(x: Tensor, w: Tensor, b: Tensor | None = None, activation: str | None = None) -> Tensor:
    """An affine map and an optional activation in one product.

    y = activation(x w^T + b)

    Shapes: x (.., K), w (N, K), b (N,) -> (.., N). `activation` is None, "relu", "gelu" (exact) or "silu".
    Memory: nothing but y; w is read in place, not transposed.
    Raises: ShapeError when the last axes differ or b does not have N elements.
    """
    x2, turned, bias, shape = _affine(x, w, b)
    if bias is not None and activation is None and not is_float(x2.dtype):  # epilogues are for floats
        y = apply("add", gemm(x2, turned), bias)
    else:
        y = gemm(x2, turned, None, bias, activation)
    return y if y.shape == shape else y.reshape(shape)


def linear_keeping(x: Tensor, w: Tensor, b: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    """(activation(z), z) with z = x w^T + b: `linear` for training with activations whose gradient reads z."""
    x2, turned, bias, shape = _affine(x, w, b)
    y, z = gemm_keeping(x2, turned, bias, activation)
    return y.reshape(shape), z.reshape(shape)


def _affine(x: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, layout.Shape]:
    """x with its leading axes as one, w turned, b, all in one dtype and checked, and the shape of x w^T."""
    given: tuple[Tensor, ...] = (x, w) if b is None else (x, w, b)
    if not all(isinstance(t, Tensor) and t.queue is x.queue for t in given):
        same_queue("linear", *given)
    shape = affine_shape(x.shape, w.shape, None if b is None else b.shape)
    if w.dtype != x.dtype or (b is not None and b.dtype != x.dtype):
        given = promote(*given)
    x, w = given[:2]
    turned = Tensor(w.buffer, w.shape[::-1], w.strides[::-1], w.offset, w.dtype, w.queue)
    flat = x if len(x.shape) == 2 else x.reshape(layout.size_of(x.shape[:-1]), x.shape[-1])
    return flat, turned, None if b is None else given[2], shape


def gemm(
    a: Tensor,
    b: Tensor,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    alpha: float = 1.0,
    accumulate: bool = False,
) -> Tensor:
    """out = activation(alpha a b + bias), or out += alpha a b with `accumulate`; one launch.

    Shapes: a (.., M, K), b (.., K, N), leading axes broadcast; bias (N,); out (.., M, N), any strides.
    All operands have one dtype; an epilogue needs a floating one and excludes `accumulate`. Where a and b are half, out
    may be float: sums that are not rounded, without an epilogue.
    Raises: DTypeError for operands of several dtypes (`matmul` and `linear` promote), ShapeError for shapes that do not
    fit.
    """
    if out is not None:
        versions.wrote(out, where="gemm")
    key = (
        "gemm",
        a.shape,
        a.strides,
        a.offset & 7,
        a.dtype.num,
        b.shape,
        b.strides,
        b.offset & 7,
        b.dtype.num,
        None if out is None else (out.shape, out.strides, out.offset & 7, out.dtype.num),
        None if bias is None else (bias.strides, bias.dtype.num),
        activation,
        accumulate,
        route.mode,
    )
    found = a.queue.netcl_state.plans.get(key)
    if found is None:
        return _first(key, Call(a, b, out, bias, activation, alpha, accumulate))
    shape, run = found
    target = allocate(a.queue, shape, a.dtype) if out is None else out
    run(target, a, b, bias=bias, alpha=alpha)
    return target


def rows_of(x: Tensor) -> Tensor:
    """`x` with all axes but the last as one; of no elements, -1 would not tell how many rows there are."""
    return x.reshape(layout.size_of(x.shape[:-1]), x.shape[-1])


def gemm_keeping(a: Tensor, b: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    """(activation(z), z) with z = a b + bias: one launch for matrices on CPU devices, else two."""
    shape, queue = (a.shape[-2], b.shape[-1]), a.queue
    if a.ndim > 2 == b.ndim and a.is_contiguous:  # one matrix for a whole batch
        made = gemm_keeping(rows_of(a), b, bias, activation)
        return made[0].reshape(*a.shape[:-1], shape[1]), made[1].reshape(*a.shape[:-1], shape[1])
    one = a.backend == "cl" and a.ndim == 2 == b.ndim and is_float(a.dtype) and layout.size_of(shape) > 0
    if not one or profile_of(queue).kind != "cpu":
        z = gemm(a, b, None, bias)
        return apply(activation, z), z
    bias = None if bias is None else contiguous(bias)
    y, z = (allocate(queue, shape, a.dtype) for _ in range(2))
    key = (
        "keeping",
        a.shape,
        a.strides,
        a.offset & 7,
        a.dtype,
        b.shape,
        b.strides,
        b.offset & 7,
        b.dtype,
        None if bias is None else bias.dtype,
        activation,
        route.mode,
    )
    plans = queue.netcl_state.plans
    run = plans.get(key)
    if run is None:
        _checked(Call(a, b, None, bias, activation))
        product = describe(a, b, y, activation, bias is not None, False)[0][1]
        run = plans[key] = plan_of(queue, replace(product, keep=True))
    run(y, a, b, bias=bias, sums=z)
    return y, z


def _first(key: Any, call: Call) -> Tensor:
    """As `gemm` for layouts met the first time: check them, and keep the plan under `key`."""
    a, b, out, bias, activation, alpha, accumulate = call
    shape = _checked(call)
    if isinstance(a.queue, CPUQueue):
        if route.special:
            route.sole(MATMUL)
        return numpy_gemm(call)
    if out is not None and out.strides[-1] != 1 and shape[-1] != 1:
        return assign(out, gemm(a, b, contiguous(out) if accumulate else None, bias, activation, alpha, accumulate))
    if bias is not None and bias.strides != (1,) and bias.shape != (1,):
        return gemm(a, b, out, contiguous(bias), activation, alpha, accumulate)
    if 0 in shape:
        return allocate(a.queue, shape, a.dtype) if out is None else out
    if out is not None and out.dtype != a.dtype and profile_of(a.queue).kind == "cpu":
        return gemm(cast(a, out.dtype), cast(b, out.dtype), out, alpha=alpha)
    target = allocate(a.queue, shape, a.dtype) if out is None else out
    products = describe(a, b, target, activation, bias is not None, accumulate)
    launches = [(offsets, plan_of(a.queue, product)) for offsets, product in products]
    run = launches[0][1] if len(launches) == 1 else _in_turn(launches)
    a.queue.netcl_state.plans[key] = shape, run
    run(target, a, b, bias=bias, alpha=alpha)
    return target


def _checked(call: Call) -> layout.Shape:
    """The shape of the result. Raises where operands, epilogue and `out` do not fit each other."""
    a, b, out, bias, activation, _, accumulate = call
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"gemm: expected a (.., M, K) and b (.., K, N) with equal K, got {a.shape} and {b.shape}.")
    if bias is not None and bias.shape != b.shape[-1:]:
        raise ShapeError(f"gemm: expected a bias of shape {b.shape[-1:]}, got {bias.shape}.")
    if b.dtype != a.dtype or (bias is not None and bias.dtype != a.dtype):
        found = f"a of {a.dtype}, b of {b.dtype}" + ("" if bias is None else f", bias of {bias.dtype}")
        raise DTypeError(f"gemm: expected operands of one dtype, got {found}; use matmul or linear, which promote.")
    if activation is not None and activation not in ACTIVATIONS:
        raise ShapeError(f"gemm: expected an activation of {', '.join(ACTIVATIONS)} or None, got {activation!r}.")
    if (bias is not None or activation is not None) and (accumulate or not is_float(a.dtype)):
        raise DTypeError(f"gemm: expected floating operands and no accumulation with an epilogue, got {a.dtype}.")
    if out is not None and out.dtype != a.dtype:
        _check_wide(a, out, accumulate or bias is not None or activation is not None)
    lead, more = a.shape[:-2], b.shape[:-2]
    shape = (*(layout.broadcast("gemm", lead, more) if lead or more else ()), a.shape[-2], b.shape[-1])
    if out is not None and out.shape != shape:
        raise ShapeError(f"gemm: expected out of shape {shape}, got {out.shape}.")
    return shape


def _check_wide(a: Tensor, out: Tensor, epilogue: bool) -> None:
    wide = compute_dtype(a.dtype)
    if out.dtype != wide:
        choice = f"{a.dtype}" if wide == a.dtype else f"{a.dtype} or {wide}"
        raise DTypeError(f"gemm: expected out of {choice}, got {out.dtype}; allocate it so, or cast the result.")
    if epilogue:
        raise DTypeError(
            f"gemm: expected out of {a.dtype} with a bias, an activation or accumulation, got {wide}; leave them out, "
            "or out."
        )


def _in_turn(launches: list[tuple[tuple[int, int, int], Run]]) -> Run:
    """What computes a product whose batch has more than two axes: a launch for each (first elements of a, b and c)."""

    def run(c: Tensor, a: Tensor, b: Tensor, **more: Any) -> None:
        for offsets, one in launches:
            a1, b1, c1 = (
                Tensor(t.buffer, t.shape, t.strides, t.offset + at, t.dtype, t.queue)
                for t, at in zip((a, b, c), offsets, strict=True)
            )
            one(c1, a1, b1, **more)

    return run


def promote(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in their common dtype."""
    dtype = tensors[0].dtype
    if all(t.dtype == dtype for t in tensors):
        return tensors
    common = common_dtype(*(t.dtype for t in tensors))
    return tuple(cast(t, common) for t in tensors)
