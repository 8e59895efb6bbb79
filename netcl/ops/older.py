"""Functions and names of earlier pages: each is one of today's, or a few of them in turn."""

from __future__ import annotations

import ast
import hashlib
import re
from typing import Any

from netcl.core.backend import opencl
from netcl.core.device.discovery import queue_of
from netcl.core.dtypes import as_dtype, compute_dtype
from netcl.core.errors import DeviceError, DTypeError, ShapeError
from netcl.core.kernels import dialect
from netcl.core.layout import as_axis
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.fusion.chain import Chain
from netcl.fusion.map import run
from netcl.kernels.route import force
from netcl.ops.convolution.op import conv2d
from netcl.ops.elementwise import add, clip
from netcl.ops.normalization.batch_norm import batch_norm
from netcl.ops.product.op import gemm, matmul, promote

# Names of routes, for `ops.force`, which knows them under today's as well.
MATMUL_NAIVE, MATMUL_TILED = "matmul_naive", "matmul_tiled"
MATMUL_REGISTER_TILED, MATMUL_VECTORIZED = "matmul_register_tiled", "matmul_vectorized"
CONV2D_NAIVE, CONV2D_IM2COL, CONV2D_IMPLICIT_GEMM = "conv2d_naive", "conv2d_im2col", "conv2d_implicit_gemm"
CONV2D_TILED_LOCAL, CONV2D_WINOGRAD = "conv2d_tiled_local", "conv2d_winograd"

FUNCTIONS = {"fabs": "abs", "rint": "round", "fmax": "MAXIMUM", "fmin": "MINIMUM", "max": "MAXIMUM", "min": "MINIMUM"}

matmul_optimized = matmul  # always register-tiled where that is the fastest


# -- elementwise -------------------------------------------------------------------------------------------------------


def elementwise_unary(x: Tensor, expression: str) -> Tensor:
    """A C expression of `x` for every element, compiled: elementwise_unary(x, "x > 0 ? x : 0.1f * x").

    Operators + - * /, one comparison at a time, ?: (in parentheses where nested), and the functions of
    `core/kernels/dialect.py`, all in the dtype of x.
    """
    return _computed("elementwise_unary", expression, ("x",), x)


def elementwise_binary(a: Tensor, b: Tensor, expression: str) -> Tensor:
    """A C expression of `a` and `b` for every pair of elements, broadcast: elementwise_binary(a, b, "a * b + 1")."""
    return _computed("elementwise_binary", expression, ("a", "b"), *promote(a, b))


elementwise_optimized = elementwise_binary  # every kernel moves vectors of 4 to 16 elements


def _computed(where: str, expression: str, names: tuple[str, ...], *tensors: Tensor) -> Tensor:
    function = f"EXPRESSION_{hashlib.sha256(repr((names, expression)).encode()).hexdigest()[:16]}".upper()
    if dialect.definition(function) is None:
        try:
            dialect.define_function(function, names, formula_of(expression))
        except (SyntaxError, ValueError) as error:
            raise DTypeError(
                f"{where}: expected a C expression of {', '.join(names)}, got {expression!r}; {error}."
            ) from error
    values = tuple(f"v{i}" for i in range(len(tensors)))
    chain = Chain(f"netcl_{function.lower()}", values, (), (("y", function, values),), ("y",))
    dtype = tensors[0].dtype
    return run(chain, compute_dtype(dtype), (dtype,), tensors)[0]


def formula_of(expression: str) -> str:
    """A C expression in the dialect of the primitive table. Raises SyntaxError for what is none."""
    text = re.sub(r"(\d\.?\d*(?:[eE][-+]?\d+)?)[fF]\b", r"\1", expression.strip())
    return ast.unparse(_Functions().visit(ast.parse(_choices(text), mode="eval")))


class _Functions(ast.NodeTransformer):
    """C's names of functions as the dialect's."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(FUNCTIONS.get(node.id, node.id), node.ctx)


def _choices(text: str) -> str:
    """`c ? a : b`, also inside parentheses, as where(c, a, b)."""
    if "?" not in text:
        return text
    marks = _outside(text, "?:(),")
    if "," in (found := [text[i] for i in marks]):
        return ", ".join(_choices(part) for part in _cut(text, [i for i in marks if text[i] == ","]))
    if "?" in found:
        first = marks[found.index("?")]
        depth = 0
        for i in marks[found.index("?") :]:
            depth += (text[i] == "?") - (text[i] == ":")
            if depth == 0:
                parts = text[:first], text[first + 1 : i], text[i + 1 :]
                return f"where({', '.join(_choices(part) for part in parts)})"
        raise SyntaxError("a ? has no :")
    start, end = marks[found.index("(")], marks[found.index(")")]
    return f"{text[: start + 1]}{_choices(text[start + 1 : end])}){_choices(text[end + 1 :])}"


def _outside(text: str, marks: str) -> list[int]:
    """Where `text` has one of `marks` outside of parentheses, which count themselves."""
    found, depth = [], 0
    for i, letter in enumerate(text):
        depth -= letter == ")"
        if depth <= 0 and letter in marks:
            found.append(i)
        depth += letter == "("
    return found


def _cut(text: str, at: list[int]) -> list[str]:
    return [text[i:j] for i, j in zip([0, *(i + 1 for i in at)], [*at, len(text)])]


# -- products and convolutions -----------------------------------------------------------------------------------------


def build_matmul_kernel(queue: Any, m: int, n: int, k: int, dtype: Any = "float32") -> str:
    """The OpenCL C of the kernel that multiplies (m, k) by (k, n) on this device. Raises DeviceError on NumPy.

    The product is computed once, on zeros, to see which kernel it takes.
    """
    queue = queue_of("build_matmul_kernel", queue)
    if isinstance(queue, CPUQueue):
        raise DeviceError("build_matmul_kernel: expected an OpenCL device, got NumPy, which runs no kernels.")
    a, b = Tensor.zeros(queue, (m, k), as_dtype(dtype)), Tensor.zeros(queue, (k, n), as_dtype(dtype))
    seen: list[opencl.Kernel] = []

    def hook(kernel: opencl.Kernel, launched: Any, *_: Any) -> None:
        if launched is queue:
            seen.append(kernel)

    opencl.hooks.append(hook)
    try:
        gemm(a, b)
    finally:
        opencl.hooks.remove(hook)
    texts: dict[int, str] = {
        id(kernel): source for (source, *_), kernel in vars(queue).get("netcl_kernels", {}).items()
    }
    return next((texts[id(kernel)] for kernel in seen if "gemm" in kernel.name), texts[id(seen[-1])])


def bias_add(x: Tensor, bias: Tensor, axis: int = 1) -> Tensor:
    """x plus one number per position along `axis`: channels of (N, C, ...) and features of (N, F) for the axis 1."""
    axis = as_axis("bias_add", axis, x.ndim)
    if bias.shape != (x.shape[axis],):
        raise ShapeError(
            f"bias_add: expected a bias of shape ({x.shape[axis]},) for axis {axis} of {x.shape}, got {bias.shape}."
        )
    return add(x, bias.reshape(-1, *(1,) * (x.ndim - axis - 1)))


def depthwise_conv2d(
    x: Tensor, w: Tensor, b: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1
) -> Tensor:
    """`conv2d` of every channel by filters of its own: x (N, C, H, W), w (C or a multiple of it, 1, KH, KW)."""
    return conv2d(x, w, b, stride, padding, dilation, groups=x.shape[1] if x.ndim == 4 else 1)


def winograd_fused(
    x: Tensor, w: Tensor, b: Tensor | None = None, padding: Any = 0, activation: str | None = None
) -> Tensor:
    """`conv2d` by Winograd's algorithm, for 3x3 filters of stride 1. Raises RouteError where it does not serve."""
    if w.ndim != 4 or w.shape[2:] != (3, 3):
        raise ShapeError(f"winograd_fused: expected 3x3 filters (O, C, 3, 3), got {w.shape}; use conv2d.")
    if x.backend == "cpu":
        return conv2d(x, w, b, padding=padding, activation=activation)
    with force("conv2d.winograd"):
        return conv2d(x, w, b, padding=padding, activation=activation)


def conv2d_relu_bn(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    **settings: Any,
) -> Tensor:
    """Convolution with ReLU in one kernel, then batch norm by its running statistics in another.

    settings: stride, padding, dilation and groups of `conv2d`, eps of `batch_norm`.
    """
    eps = settings.pop("eps", 1e-5)
    y = conv2d(x, w, b, **settings, activation="relu")
    return batch_norm(y, weight, bias, running_mean, running_var, training=False, eps=eps)[0]


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """`clip` by PyTorch's name and keywords."""
    return clip(x, min, max)
