"""Elementwise ops: rows of the primitive table applied to tensors and numbers of any rank, broadcast and dtype.

Result dtypes follow NumPy's promotion with numbers weak (promotion.py); float16 and bfloat16 are stored, float32
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netcl.core import versions
from netcl.core.backend import cpu, opencl
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import (
    BOOL,
    FLOAT64,
    INT16,
    DType,
    as_dtype,
    common_dtype,
    compute_dtype,
    converter,
    is_float,
    on_device,
)
from netcl.core.errors import DTypeError, ShapeError, meant, unexpected
from netcl.core.kernels import dialect
from netcl.core.kernels.dialect import of_formulas
from netcl.core.kernels.primitives import TABLE, Primitive
from netcl.core.protocols import Queue
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.fusion.chain import Chain
from netcl.fusion.map import plan_of, run
from netcl.kernels.grid import START
from netcl.ops import promotion

Scalar = int | float | bool | np.number | np.bool_
Operand = Tensor | Scalar
Ready = tuple[Callable[..., Tensor], Callable[[Any], Any]]  # a launch, and what makes its numbers


def apply(name: str, *operands: Operand, out: Tensor | None = None, **attrs: Scalar) -> Tensor:
    """Apply the table's row `name` to tensors and numbers (at least one tensor), with the row's attributes as keywords.

    Raises ShapeError for shapes that do not broadcast, DTypeError for wrong operands, DeviceError for mixed queues.
    """
    key: list[Any] = [name]
    tensors: list[Tensor] = []
    numbers: list[Any] = []
    queue = None
    for x in operands:
        if type(x) is Tensor:
            key += (x.shape, x.strides, x.dtype, x.offset & START)
            queue = x.queue if not tensors or x.queue is queue else None
            tensors.append(x)
        else:
            key.append(type(x))
            numbers.append(x)
    if out is not None or queue is None:
        return _resolved(name, operands, attrs, out)[0]
    if attrs:
        given = _given(name, attrs)
        key += map(type, given)
        numbers += given
    found: Ready | None = queue.netcl_state.plans.get(tuple(key))
    if found is not None:
        launch, number = found
        try:
            values = [number(x) for x in numbers]
        except OverflowError:  # this number does not fit
            return _resolved(name, operands, attrs, None)[0]
        return launch(*tensors, *values)
    result, ready = _resolved(name, operands, attrs, None)
    if ready is not None:
        queue.netcl_state.plans[tuple(key)] = ready
    return result


def _given(name: str, attrs: dict[str, Any]) -> list[Any]:
    """The row's attributes in order. Raises DTypeError unless these are the ones that were given."""
    row = TABLE.get(name)
    if row is None:
        raise DTypeError(f"elementwise.apply: expected the name of a row, got {name!r}{meant(name, TABLE)}.")
    if len(attrs) != len(row.attrs) or any(a not in attrs for a in row.attrs):
        raise unexpected(name, attrs, (*row.inputs, *row.attrs))
    return [attrs[a] for a in row.attrs]


def _resolved(
    name: str, operands: Sequence[Any], attrs: dict[str, Any], out: Tensor | None
) -> tuple[Tensor, Ready | None]:
    """`apply` without a kept plan; with the result, on OpenCL, what to keep."""
    given = _given(name, attrs)
    signature = tuple([x.dtype if isinstance(x, Tensor) else promotion.kind(name, x) for x in (*operands, *given)])
    chain, compute, dtype = resolve(name, signature)
    tensors = [x for x in operands if isinstance(x, Tensor)]
    queue = tensors[0].queue
    if compute == FLOAT64:
        compute, dtype = _without_fp64(queue, compute, dtype)
    if name == "where" and tensors[0] is operands[0] and promotion.loses_truth(tensors[0].dtype, compute):
        return _resolved(name, (cast(tensors[0], BOOL), *operands[1:]), attrs, out)[0], None
    if len(tensors) == len(operands) and not attrs:
        scalars, fits = [], True
    else:
        same, values, fixed = promotion.fitted(name, signature, operands, attrs)
        if same != name:
            return _resolved(same, values, fixed, out)[0], None
        fits = (
            values is operands and fixed == attrs and (name != "pow" or is_float(compute))
        )  # `fitted` looks each time
        scalars = [x for x in values if not isinstance(x, Tensor)] + [fixed[a] for a in TABLE[name].attrs]
    number = converter(compute)
    scalars = [number(x) for x in scalars]
    if out is not None:
        _check_out(name, dtype, out.dtype)
        return run(chain, compute, (out.dtype,), tensors, scalars, (out,))[0], None
    result = run(chain, compute, (dtype,), tensors, scalars)[0]
    if isinstance(queue, CPUQueue) or not fits:
        return result, None
    return result, (plan_of(queue, chain, compute, (dtype,), tensors), number)


def _check_out(name: str, dtype: DType, out: DType) -> None:
    if is_float(dtype) > is_float(out) or (out == BOOL and dtype != BOOL):
        raise DTypeError(f"{name}: expected `out` of a dtype that can hold {dtype}, got {out}.")


def _without_fp64(queue: Queue, compute: DType, dtype: DType) -> tuple[DType, DType]:
    profile = profile_of(queue)
    compute = on_device(compute, profile.has_fp64, profile.name)
    return compute, dtype if dtype == BOOL else on_device(dtype, profile.has_fp64, profile.name)


@of_formulas(4096)
def resolve(name: str, signature: tuple[Any, ...]) -> tuple[Chain, DType, DType]:
    """The chain, compute dtype and result dtype of row `name` for dtypes of operands (or classes of numbers).

    Classes of the row's attributes may follow.
    """
    row, compute, dtype = promotion.resolve(name, signature)
    return _chain(row, tuple(isinstance(s, np.dtype) for s in signature[: len(row.inputs)])), compute, dtype


@of_formulas(1024)
def _chain(row: Primitive, is_tensor: tuple[bool, ...]) -> Chain:
    """One application of `row`, with v0 v1 ... for tensors and s0 s1 ... for numbers."""
    inputs = [f"v{i}" for i, t in enumerate(is_tensor) if t]
    numbers = [f"s{i}" for i, t in enumerate(is_tensor) if not t]
    arguments = [f"{'v' if t else 's'}{i}" for i, t in enumerate(is_tensor)] + [f"s_{a}" for a in row.attrs]
    scalars = (*numbers, *(f"s_{a}" for a in row.attrs))
    return Chain(f"netcl_{row.name}", tuple(inputs), scalars, (("y", row.name.upper(), tuple(arguments)),), ("y",))


# -- gradients ---------------------------------------------------------------------------------------------------------


def gradients(
    name: str, g: Tensor, y: Tensor | None, operands: Sequence[Any], needs: Sequence[bool], **attrs: Scalar
) -> list[Tensor | None]:
    """The gradients of row `name` for the operands that need one, in one launch and in the broadcast shape.

    `operands` holds tensors or numbers; those that no formula reads may be None.
    """
    row = TABLE[name]
    result: list[Tensor | None] = [None] * len(operands)
    wanted: tuple[int, ...] = ()
    for i, (formula, need) in enumerate(zip(row.grads, needs, strict=False)):
        if need and formula == "g":
            result[i] = g  # nothing to compute
        elif need and formula:
            wanted += (i,)
    if not wanted:
        return result
    values = {_free(n): v for n, v in zip(("g", "y", *row.inputs), (g, y, *operands), strict=False)}
    numbers = {_free(n): v for n, v in attrs.items()}
    kinds = tuple([(n, isinstance(v, Tensor)) for n, v in values.items() if v is not None])
    chain = _gradient_chain(row, wanted, kinds)
    tensors = [values[n] for n in chain.inputs]
    floats = [t.dtype for t in tensors if is_float(t.dtype)]
    compute = compute_dtype(common_dtype(*floats))
    number = converter(compute)
    scalars = [number(values[s] if s in values else numbers[s]) for s in chain.scalars]
    found = run(chain, compute, (g.dtype,) * len(wanted), tensors, scalars)
    for i, dx in zip(wanted, found, strict=True):
        result[i] = dx
    return result


def before(activation: str | None, g: Tensor, saved: Tensor | None) -> Tensor:
    """The gradient of what went into an activation, from `saved`: what its formula reads, its result or its input."""
    if activation is None:
        return g
    return gradients(activation, g, saved, (saved,), (True,))[0]  # type: ignore[return-value]  # it is wanted


# names that the loop around a chain has for itself
TAKEN = frozenset(("c", "r", "i", "n", "first", "last", "end", "rows", "cols", "step", "chunk", "count"))


def _free(name: str) -> str:
    """The name of an operand or attribute in the kernel of a gradient."""
    return f"{name}_" if name in TAKEN else name


@of_formulas(1024)
def _gradient_chain(row: Primitive, wanted: tuple[int, ...], kinds: tuple[tuple[str, bool], ...]) -> Chain:
    """The gradient formulas `wanted`, reading only the names they use."""
    known = dict(kinds)
    functions = {f: (params, formula) for f, params, formula in row.functions()}
    lines: list[tuple[str, str, tuple[str, ...]]] = []
    used: set[str] = set()
    for i in wanted:
        function = f"{row.name.upper()}_D{i}"
        params, formula = functions[function]
        reads = dialect.names(formula)
        used |= reads
        lines.append((f"d{i}", function, tuple(_free(p) if p in reads else "0" for p in params)))
    order = [_free(n) for n in ("g", "y", *row.inputs, *row.attrs) if n in used or n == "g"]
    inputs = tuple(n for n in order if known.get(n))
    scalars = tuple(n for n in order if not known.get(n))
    return Chain(f"netcl_{row.name}_grad", inputs, scalars, tuple(lines), tuple(f"d{i}" for i in wanted))


# -- copies ------------------------------------------------------------------------------------------------------------

SHARED = 1 << 20  # bytes from which a CPU's workers copy faster together than the one that runs a copy command
_COPY = Chain("netcl_copy", ("v0",), (), (), ("v0",))


def cast(x: Tensor, dtype: Any) -> Tensor:
    """`x` as `dtype`: truncation from floats to integers, `x != 0` to bool."""
    target = as_dtype(dtype)
    if target == x.dtype:
        return x
    if target == BOOL:
        return apply("ne", x, 0)
    target = _without_fp64(x.queue, target, target)[1] if target == FLOAT64 else target
    return run(_COPY, compute_dtype(x.dtype), (target,), (x,))[0]


def copy(x: Tensor) -> Tensor:
    """A contiguous copy of `x`."""
    if x.backend == "cl" and x.is_contiguous and not (x.nbytes >= SHARED and profile_of(x.queue).kind == "cpu"):
        out = allocate(x.queue, x.shape, x.dtype)
        size = x.dtype.itemsize
        opencl.copy_buffer(x.queue, out.buffer, x.buffer, x.nbytes, 0, x.offset * size)
        return out
    if x.backend == "cpu":
        return cpu.compute(_copied, x)
    bits = _bits(x)
    found = run(_COPY, compute_dtype(bits.dtype), (bits.dtype,), (bits,))[0]
    return found if bits is x else _seen_as(found, x.dtype)


def _copied(x: np.ndarray) -> np.ndarray:
    return x.copy()


def _taken(_: np.ndarray, source: np.ndarray) -> np.ndarray:
    return source


def _seen_as(x: Tensor, dtype: DType) -> Tensor:
    """The memory of `x` as another dtype of the same size."""
    return Tensor(x.buffer, x.shape, x.strides, x.offset, dtype, x.queue)


def _bits(x: Tensor) -> Tensor:
    """What a kernel moves in the place of `x`: 16-bit floats as integers, since loading them quiets signalling NaNs."""
    return x if x.dtype.itemsize != 2 else _seen_as(x, INT16)


def contiguous(x: Tensor) -> Tensor:
    """`x` itself when contiguous, else a copy that is."""
    return x if x.is_contiguous else copy(x)


def assign(target: Tensor, source: Tensor) -> Tensor:
    """Write `source`, broadcast and cast, into `target` in place (any strides); they must not overlap."""
    same_queue("assign", target, source)
    source = cast(source, BOOL) if target.dtype == BOOL else source
    source, place = source.expand(target.shape), target
    if source.dtype == target.dtype:
        if target.backend == "cpu":
            versions.wrote(target, where="assign")
            cpu.update(_taken, [target], source)
            return target
        source, place = _bits(source), _bits(target)
    run(_COPY, compute_dtype(source.dtype), (place.dtype,), (source,), (), (place,))
    return target


# -- the ops, one function per row -------------------------------------------------------------------------------------


def unary(name: str) -> Callable[..., Tensor]:
    def op(a: Tensor, **unknown: Any) -> Tensor:
        if unknown:
            raise unexpected(name, unknown, TABLE[name].inputs)
        if type(a) is Tensor:
            key = (name, a.shape, a.strides, a.dtype, a.offset & START)
            found: Ready | None = a.queue.netcl_state.plans.get(key)
            if found is not None:
                return found[0](a)
        return apply(name, a)

    return _document(op, name)


def binary(name: str) -> Callable[..., Tensor]:
    def op(a: Operand, b: Operand, **unknown: Any) -> Tensor:
        if unknown:
            raise unexpected(name, unknown, TABLE[name].inputs)
        if (
            type(a) is Tensor and type(b) is Tensor and a.queue is b.queue
        ):  # `apply` in short, for what is most frequent
            key = (name, a.shape, a.strides, a.dtype, a.offset & START, b.shape, b.strides, b.dtype, b.offset & START)
            found: Ready | None = a.queue.netcl_state.plans.get(key)
            if found is not None:
                return found[0](a, b)
        return apply(name, a, b)

    return _document(op, name)


def _document(op: Any, name: str) -> Callable[..., Tensor]:
    row = TABLE[name]
    op.__name__ = op.__qualname__ = name
    slope = "; ".join(f"d/d{n} = {f}" for n, f in zip(row.inputs, row.grads, strict=False) if f)
    op.__doc__ = f"{name}: y = {row.value}, elementwise." + (f" Gradient: {slope}." if slope else "")
    documented: Callable[..., Tensor] = op
    return documented


add, sub, mul, div = (binary(n) for n in ("add", "sub", "mul", "div"))
remainder, fmod, maximum, minimum, atan2 = (binary(n) for n in ("remainder", "fmod", "maximum", "minimum", "atan2"))
lt, le, gt, ge, eq, ne = (binary(n) for n in ("lt", "le", "gt", "ge", "eq", "ne"))
bitwise_and, bitwise_or, bitwise_xor = (binary(n) for n in ("bitwise_and", "bitwise_or", "bitwise_xor"))
bitwise_not = unary("bitwise_not")
logical_and, logical_or = binary("logical_and"), binary("logical_or")
logical_not, isnan, isfinite, isinf = (unary(n) for n in ("logical_not", "isnan", "isfinite", "isinf"))
neg, abs, sign, square, reciprocal = (unary(n) for n in ("neg", "abs", "sign", "square", "reciprocal"))
exp, expm1, log, log1p, log2, log10 = (unary(n) for n in ("exp", "expm1", "log", "log1p", "log2", "log10"))
sqrt, rsqrt, erf, sin, cos, tan = (unary(n) for n in ("sqrt", "rsqrt", "erf", "sin", "cos", "tan"))
sinh, cosh, tanh, atan = (unary(n) for n in ("sinh", "cosh", "tanh", "atan"))
relu, sigmoid, log_sigmoid, silu, mish = (unary(n) for n in ("relu", "sigmoid", "log_sigmoid", "silu", "mish"))
selu, softplus, softsign = (unary(n) for n in ("selu", "softplus", "softsign"))
hard_sigmoid, hard_swish, hard_tanh = (unary(n) for n in ("hard_sigmoid", "hard_swish", "hard_tanh"))
swish = silu


def _rounding(name: str) -> Callable[..., Tensor]:
    def op(a: Tensor, **unknown: Any) -> Tensor:
        if unknown:
            raise unexpected(name, unknown, TABLE[name].inputs)
        return apply(name, a) if is_float(a.dtype) else a

    return _document(op, name)


floor, ceil, round, trunc = (_rounding(n) for n in ("floor", "ceil", "round", "trunc"))


def where(condition: Operand, a: Operand, b: Operand, **unknown: Any) -> Tensor:
    """`a` where `condition` is true (not zero), else `b`; all three broadcast."""
    if unknown:
        raise unexpected("where", unknown, ("condition", "a", "b"))
    return apply("where", condition, a, b)


def pow(a: Operand, b: Operand, **unknown: Any) -> Tensor:
    """a ** b; the exponent 2 is a product.

    Of integers, exponents below 0 give the whole part: 1 and -1 keep to themselves, all else, 0 too, gives 0. As a
    number such an exponent is refused (DTypeError).
    """
    if unknown:
        raise unexpected("pow", unknown, ("a", "b"))
    if isinstance(a, Tensor) and not isinstance(b, Tensor) and promotion.is_square(a.dtype, b):
        return apply("square", a)
    return apply("pow", a, b)


def clip(a: Tensor, lo: Scalar | None = None, hi: Scalar | None = None, **unknown: Any) -> Tensor:
    """min(max(a, lo), hi), so `hi` where the bounds cross; None leaves a side open. NaN stays NaN.

    Integers with a float bound become floats; a bound beyond their range limits nothing.
    """
    if unknown:
        raise unexpected("clip", unknown, ("a", "lo", "hi"))
    return apply("clip", a, **promotion.open_bounds(a.dtype, lo, hi))


def leaky_relu(a: Tensor, slope: float = 0.01, **unknown: Any) -> Tensor:
    """a where a >= 0, else slope * a."""
    if unknown:
        raise unexpected("leaky_relu", unknown, ("a", "slope"))
    return apply("leaky_relu", a, slope=slope)


def prelu(a: Tensor, weight: Tensor | Scalar, **unknown: Any) -> Tensor:
    """a where a >= 0, else weight * a. Shapes: a (N, C, ...), weight one number or (C,) along axis 1."""
    if unknown:
        raise unexpected("prelu", unknown, ("a", "weight"))
    shape = channels_of("prelu", a, weight)
    return apply("prelu", a, weight.reshape(shape) if isinstance(weight, Tensor) and shape else weight)


def channels_of(where: str, a: Any, weight: Any) -> tuple[int, ...]:
    """The shape in which weights (C,) meet axis 1 of `a`; () where they broadcast as they are."""
    if getattr(weight, "ndim", 0) != 1 or weight.size == 1 or a.ndim < 2:
        return ()
    if weight.shape[0] != a.shape[1]:
        raise ShapeError(f"{where}: expected one weight or {a.shape[1]} for {a.shape}, got {weight.shape}.")
    return (weight.shape[0], *(1,) * (a.ndim - 2))


def elu(a: Tensor, alpha: float = 1.0, **unknown: Any) -> Tensor:
    """a where a > 0, else alpha * (exp(a) - 1)."""
    if unknown:
        raise unexpected("elu", unknown, ("a", "alpha"))
    return apply("elu", a, alpha=alpha)


def gelu(a: Tensor, approximate: str = "none", **unknown: Any) -> Tensor:
    """a * Phi(a) with the normal distribution's Phi: exact ("none") or by tanh ("tanh"). arXiv:1606.08415."""
    if unknown:
        raise unexpected("gelu", unknown, ("a", "approximate"))
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: expected approximate 'none' or 'tanh', got {approximate!r}.")
    return apply("gelu" if approximate == "none" else "gelu_tanh", a)
