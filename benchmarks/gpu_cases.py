"""Cases for an NVIDIA GPU, measured by benchmarks/h200.py: ours and PyTorch's on the same data, interleaved.

A case is a function of an `Env` that returns a `Pair`: two closures that enqueue one piece of work each, and one that
gives the relative errors of both against float64 on a sample of the results. To add one, write the function and a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

Call = Callable[[], Any]
SAMPLE = 64  # rows of a result that are compared


class Pair(NamedTuple):
    """What a case prepared."""

    ours: Call
    theirs: Call
    errors: Callable[[], tuple[float, float]]  # of (ours, theirs)
    flops: float = 0.0
    bytes: float = 0.0
    seconds: Callable[[int], float] | None = None  # of so many calls of ours, where they run in another process


@dataclass
class Env:
    """Both sides: the torch module and a queue of netcl on the same device."""

    torch: Any
    queue: Any

    def randn(self, *shape: int, dtype: str = "float32") -> Any:
        """Normal numbers as a torch tensor on the GPU."""
        return self.torch.randn(*shape, device="cuda").to(getattr(self.torch, dtype))

    def ours(self, x: Any) -> Any:
        """A netcl tensor with the values and strides of a torch tensor."""
        from netcl.core.tensor import Tensor

        if x.ndim == 2 and not x.is_contiguous() and x.t().is_contiguous():
            return self.ours(x.t()).transpose(-1, -2)
        if x.dtype == self.torch.bfloat16:  # NumPy takes its bits
            return Tensor.from_host(self.queue, x.cpu().view(self.torch.int16).numpy().view("bfloat16"))
        return Tensor.from_host(self.queue, x.cpu().numpy())

    def theirs(self, y: Any) -> Any:
        """A torch tensor with the values of a netcl tensor, float64."""
        return self.torch.from_numpy(np.asarray(y.to_host(), np.float64)).to("cuda")

    def error(self, got: Any, exact: Any) -> float:
        """The norm of the difference over the norm of the right values."""
        return float((got - exact).norm() / exact.norm())


@dataclass(frozen=True)
class GpuCase:
    """A row of the table: `target` is the least ratio of PyTorch's time to ours that is wanted."""

    name: str
    make: Callable[[Env], Pair]
    target: float | None = None


def matmul(
    env: Env, m: int, n: int, k: int, dtype: str = "float32", precision: str = "high", tf32: bool = False,
    batch: int = 0, turn_a: bool = False, turn_b: bool = False,
) -> Pair:  # fmt: skip
    """A product of m x k by k x n, `batch` of them; `turn_a`, `turn_b`: the operand is a transposed view."""
    from netcl.ops.nvidia.precision import set_matmul_precision
    from netcl.ops.product.op import gemm

    torch, lead = env.torch, (batch,) if batch else ()
    a = env.randn(*lead, k, m, dtype=dtype).transpose(-1, -2) if turn_a else env.randn(*lead, m, k, dtype=dtype)
    b = env.randn(*lead, n, k, dtype=dtype).transpose(-1, -2) if turn_b else env.randn(*lead, k, n, dtype=dtype)
    ta, tb = env.ours(a), env.ours(b)
    out, mine = torch.empty(*lead, m, n, device="cuda", dtype=a.dtype), gemm(ta, tb)
    rows = torch.randint(0, m, (min(SAMPLE, m),), device="cuda")
    exact = a[..., rows, :].double() @ b.double()

    def ours() -> None:
        set_matmul_precision(precision)
        gemm(ta, tb, mine)

    def theirs() -> None:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.matmul(a, b, out=out)

    def errors() -> tuple[float, float]:
        mine.fill_(float("nan"))
        ours()
        theirs()
        return env.error(env.theirs(mine)[..., rows, :], exact), env.error(out[..., rows, :].double(), exact)

    return Pair(ours, theirs, errors, 2.0 * m * n * k * max(batch, 1))


def layer_gradients(env: Env, rows: int, outs: int, ins: int) -> Pair:
    """All gradients of relu(x w^T + b) from y and the upstream gradient."""
    from netcl.ops.product import linear_grad

    torch, x, w = env.torch, env.randn(rows, ins), env.randn(outs, ins)
    g, y = env.randn(rows, outs), env.randn(rows, outs)
    tg, tx, tw, ty = (env.ours(t) for t in (g, x, w, y))
    dz = g.double() * (y > 0)
    exact = dz @ w.double(), dz.t() @ x.double(), dz.sum(0)

    def ours() -> Any:
        return linear_grad.gradients(tg, tx, tw, ty)

    def theirs() -> Any:
        dz = torch.ops.aten.threshold_backward(g, y, 0)
        return dz @ w, dz.t() @ x, dz.sum(0)

    def errors() -> tuple[float, float]:
        torch.backends.cuda.matmul.allow_tf32 = False
        mine, other = ([f(t) for t in fn()] for f, fn in ((env.theirs, ours), (lambda t: t.double(), theirs)))
        return max(map(env.error, mine, exact)), max(map(env.error, other, exact))

    return Pair(ours, theirs, errors, 4.0 * rows * outs * ins)


def conv(
    env: Env, n: int, c: int, size: int, o: int, kernel: int, stride: int = 1, part: str = "forward",
    dtype: str = "float32", tf32: bool = False, precision: str = "high", units: bool = True,
) -> Pair:  # fmt: skip
    """A convolution with padding kernel // 2, or its gradient for the input ("dx") or the weights ("dw").

    Without `units` by the kernels of any device; with "highest" precision also without transforms.
    """
    from netcl.ops.convolution import op as ours_conv
    from netcl.ops.nvidia import probe
    from netcl.ops.nvidia.precision import set_matmul_precision

    torch, how = env.torch, {"stride": stride, "padding": kernel // 2}
    x, w = (
        env.randn(n, c, size, size, dtype=dtype),
        env.randn(o, c, kernel, kernel, dtype=dtype) * (c * kernel**2) ** -0.5,
    )
    run = {
        "forward": lambda x, w, g: torch.nn.functional.conv2d(x, w, **how),
        "dx": lambda x, w, g: torch.nn.grad.conv2d_input(x.shape, w, g, **how),
        "dw": lambda x, w, g: torch.nn.grad.conv2d_weight(x, w.shape, g, **how),
    }[part]
    g = torch.randn_like(torch.nn.functional.conv2d(x, w, **how))
    tx, tw, tg = env.ours(x), env.ours(w), env.ours(g)
    mine = {
        "forward": lambda: ours_conv.conv2d(tx, tw, **how),
        "dx": lambda: ours_conv.conv2d_input_grad(tg, tw, x.shape, **how),
        "dw": lambda: ours_conv.conv2d_weight_grad(tg, tx, w.shape, **how),
    }[part]
    torch.backends.cudnn.benchmark = True
    exact = run(x.double(), w.double(), g.double())

    def ours() -> Any:
        set_matmul_precision(precision)
        if units:
            return mine()
        with probe.only():
            return mine()

    def theirs() -> Any:
        torch.backends.cudnn.allow_tf32 = tf32
        return run(x, w, g)

    def errors() -> tuple[float, float]:
        return env.error(env.theirs(ours()), exact), env.error(theirs().double(), exact)

    return Pair(ours, theirs, errors, 2.0 * n * o * c * kernel**2 * (-(-size // stride)) ** 2)


def _convs(name: str, targets: tuple[float | None, ...], *sizes: int, **how: Any) -> tuple[GpuCase, ...]:
    return tuple(
        GpuCase(
            f"conv {name} {part}",
            partial(conv, **dict(zip(("n", "c", "size", "o", "kernel"), sizes)), part=part, **how),
            t,
        )
        for part, t in zip(("forward", "dx", "dw"), targets)
    )


def _matmul(name: str, target: float | None, *sizes: int, **how: Any) -> GpuCase:
    return GpuCase(f"matmul {name}", partial(matmul, m=sizes[0], n=sizes[1], k=sizes[2], **how), target)


IMAGES = ((32, 64, 56), (32, 128, 28))  # batch, channels and size of convolutions that go two ways
DIRECT = (  # batch, channels, size, output channels, filter and stride of convolutions without transforms
    (32, 64, 56, 256, 1, 1),
    (32, 256, 56, 64, 1, 1),
    (32, 256, 14, 1024, 1, 1),
    (32, 512, 7, 2048, 1, 1),
    (32, 512, 14, 1024, 1, 2),
    (32, 128, 56, 128, 3, 2),
    (32, 64, 28, 64, 5, 1),
    (32, 3, 224, 64, 7, 2),
)

CASES = (
    *(_matmul(f"fp32 high {n}", t, n, n, n) for n, t in ((512, None), (1024, 1.1), (2048, None))),
    *(_matmul(f"fp32 high {n}", 2.0, n, n, n) for n in (4096, 8192)),
    *(_matmul(f"fp32 highest {n}", t, n, n, n, precision="highest") for n, t in ((1024, None), (4096, 0.9))),
    *(_matmul(f"tf32 {n}", t, n, n, n, precision="medium", tf32=True) for n, t in ((1024, None), (4096, 0.9))),
    *(_matmul(f"fp16 {n}", t, n, n, n, dtype="float16") for n, t in ((1024, None), (4096, 0.9), (8192, 0.92))),
    *(_matmul(f"bf16 {n}", t, n, n, n, dtype="bfloat16") for n, t in ((1024, None), (4096, 0.9), (8192, 0.92))),
    _matmul("bf16 4096 a^T", None, 4096, 4096, 4096, dtype="bfloat16", turn_a=True),
    _matmul("bf16 4095x4097x4099", 0.8, 4095, 4097, 4099, dtype="bfloat16"),
    _matmul("fp16 4096 a^T", None, 4096, 4096, 4096, dtype="float16", turn_a=True),
    _matmul("fp16 4096 b^T", None, 4096, 4096, 4096, dtype="float16", turn_b=True),
    _matmul("fp32 high 4096 a^T", None, 4096, 4096, 4096, turn_a=True),
    _matmul("fp32 high 4096 b^T", None, 4096, 4096, 4096, turn_b=True),
    _matmul("fp32 high 4095x4097x4099", 1.2, 4095, 4097, 4099),
    _matmul("fp16 4095x4097x4099", 0.8, 4095, 4097, 4099, dtype="float16"),
    _matmul("fp32 high 65536x64x64", 1.0, 65536, 64, 64),
    _matmul("fp32 high 256 x (128,128,128)", 1.0, 128, 128, 128, batch=256),
    _matmul("fp32 high 512x512x16384", None, 512, 512, 16384),
    _matmul("fp16 8192x768x3072 b^T", None, 8192, 768, 3072, dtype="float16", turn_b=True),
    _matmul("fp32 high 8192x768x3072 b^T", None, 8192, 768, 3072, turn_b=True),
    _matmul("fp32 high 128x256x784", None, 128, 256, 784),
    _matmul("fp32 high 32x256x784 b^T", None, 32, 256, 784, turn_b=True),
    _matmul("fp32 high 32x128x256 b^T", None, 32, 128, 256, turn_b=True),
    *(
        GpuCase(f"layer gradients {m}x{n}x{k}", partial(layer_gradients, rows=m, outs=n, ins=k))
        for m, n, k in ((32, 10, 128), (32, 128, 256), (512, 128, 256), (128, 1024, 1024), (4096, 1024, 1024))
    ),
    *_convs("3x3 32x64x56 64 fp32", (1.0, 1.0, 1.0), 32, 64, 56, 64, 3),
    *_convs("3x3 32x64x56 64 fp16", (0.8, 0.8, 0.8), 32, 64, 56, 64, 3, dtype="float16"),
    *_convs("3x3 32x64x56 64 bf16", (0.8, 0.8, 0.8), 32, 64, 56, 64, 3, dtype="bfloat16"),
    *_convs("3x3 32x64x56 64 tf32", (None, None, None), 32, 64, 56, 64, 3, tf32=True, precision="medium"),
    *_convs("3x3/2 32x64x56 128 fp32", (None, None, None), 32, 64, 56, 128, 3, stride=2),
    *_convs("1x1 32x256x28 512 fp32", (None, None, None), 32, 256, 28, 512, 1),
    *_convs("3x3 128x512x4 512 fp16", (None, None, None), 128, 512, 4, 512, 3, dtype="float16"),
    *_convs("7x7/2 32x3x224 64 fp32", (1.0, 1.0, 1.0), 32, 3, 224, 64, 7, stride=2),
    *_convs("7x7/2 32x3x224 64 fp16", (1.0, 1.0, 1.0), 32, 3, 224, 64, 7, stride=2, dtype="float16"),
    *_convs("3x3 128x3x32 64 fp32", (None, None, None), 128, 3, 32, 64, 3),
    *_convs("4x4/4 64x3x224 96 fp32", (None, None, None), 64, 3, 224, 96, 4, stride=4),
    *_convs("16x16/16 64x3x224 768 fp32", (None, None, None), 64, 3, 224, 768, 16, stride=16),
    *_convs("16x16/16 64x3x224 768 fp16", (None, None, None), 64, 3, 224, 768, 16, stride=16, dtype="float16"),
    *(
        case
        for n, c, size in (*IMAGES, (32, 256, 14), (32, 512, 7), (8, 64, 224), (128, 64, 32), (1, 64, 56))
        for case in _convs(f"portable 3x3 {n}x{c}x{size} {c} fp32", (None, None, None), n, c, size, c, 3, units=False)
    ),
    *(
        case
        for n, c, size, o, k, stride in DIRECT
        for case in _convs(
            f"portable {k}x{k}{f'/{stride}' if stride > 1 else ''} {n}x{c}x{size} {o} fp32", (None, None, None),
            n, c, size, o, k, stride=stride, units=False,
        )
    ),
    *_convs("portable 3x3 32x64x56 64 fp16", (None, None, None), 32, 64, 56, 64, 3, dtype="float16", units=False),
    *(
        case
        for n, c, size in IMAGES
        for case in _convs(
            f"portable highest 3x3 {n}x{c}x{size} {c} fp32", (None, None, None), n, c, size, c, 3, units=False,
            precision="highest",
        )
    ),
)  # fmt: skip
