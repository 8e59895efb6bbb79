"""Single ops at the sizes that matter on CPU devices, each beside PyTorch's op of the same meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import exact
from benchmarks.case import Call, Case, Lazy, Work, our_backward, our_pass, torch_backward, torch_pass

ag, ops, net = Lazy("netcl.autograd"), Lazy("netcl.ops"), Lazy("netcl.autograd.compiler")
optim, torch_optim = Lazy("netcl.optim"), Lazy("torch.optim")
elementwise, reduction = Lazy("netcl.ops.elementwise"), Lazy("netcl.ops.reduction")
conv, norm = Lazy("netcl.ops.conv"), Lazy("netcl.ops.norm")
torch, functional, torch_nn = Lazy("torch"), Lazy("torch.nn.functional"), Lazy("torch.nn")

FLOAT = 4  # bytes
ROWS, COLUMNS, MILLIONS = 4096, 1024, 1 << 22  # the sizes of the acceptance table: (4096, 1024) and 4M


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal float32."""
    return rng.standard_normal(shape, np.float32)


@dataclass(frozen=True)
class Matmul(Work):
    """a @ b."""

    m: int
    k: int
    n: int
    batch: tuple[int, ...] = ()

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return normal(rng, *self.batch, self.m, self.k), normal(rng, *self.batch, self.k, self.n)

    def ours(self, queue: Any, a: Any, b: Any) -> Call:
        matmul = ops.matmul
        return lambda: matmul(a, b)

    def torch(self, a: Any, b: Any) -> Call:
        matmul = torch.matmul
        return lambda: matmul(a, b)

    def numpy(self, a: np.ndarray, b: np.ndarray) -> Call:
        return lambda: a @ b

    exact = staticmethod(np.matmul)

    def flops(self) -> float:
        return 2.0 * self.m * self.k * self.n * int(np.prod(self.batch))


@dataclass(frozen=True)
class Conv(Work):
    """conv2d of (n, c, h, h) with (o, c / groups, kernel, kernel): "forward", "dx" or "dw"."""

    part: str
    n: int = 32
    c: int = 64
    h: int = 56
    o: int = 64
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    groups: int = 1

    @property
    def geometry(self) -> dict[str, int]:
        return {"stride": self.stride, "padding": self.padding, "groups": self.groups}

    @property
    def height(self) -> int:
        return (self.h + 2 * self.padding - self.kernel) // self.stride + 1

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        x = normal(rng, self.n, self.c, self.h, self.h)
        w = normal(rng, self.o, self.c // self.groups, self.kernel, self.kernel)
        return (x, w) if self.part == "forward" else (x, w, normal(rng, self.n, self.o, self.height, self.height))

    def ours(self, queue: Any, x: Any, w: Any, g: Any = None) -> Call:
        if g is None:
            return lambda: conv.conv2d(x, w, **self.geometry)
        if self.part == "dx":
            return lambda: conv.conv2d_input_grad(g, w, x.shape, **self.geometry)
        return lambda: conv.conv2d_weight_grad(g, x, w.shape, **self.geometry)

    def torch(self, x: Any, w: Any, g: Any = None) -> Call:
        if g is None:
            return lambda: functional.conv2d(x, w, **self.geometry)
        wrt = (0,) if self.part == "dx" else (1,)
        return torch_backward(lambda x, w: functional.conv2d(x, w, **self.geometry), (x, w), g, wrt)

    def exact(self, *xs: np.ndarray) -> Any:
        right = {"forward": exact.conv, "dx": exact.conv_input_grad, "dw": exact.conv_weight_grad}[self.part]
        return right(*xs, **self.geometry)

    def flops(self) -> float:
        return 2.0 * self.n * self.height**2 * self.o * (self.c // self.groups) * self.kernel**2


@dataclass(frozen=True)
class Rows(Work):
    """A row operation on (rows, columns): "softmax", "layer_norm" or "rms_norm"; its gradients with `backward`."""

    op: str
    backward: bool
    rows: int = ROWS
    columns: int = COLUMNS

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        weights = {"softmax": 0, "layer_norm": 2, "rms_norm": 1}[self.op]
        xs = [normal(rng, self.rows, self.columns), *(normal(rng, self.columns) for _ in range(weights))]
        return [*xs, normal(rng, self.rows, self.columns)] if self.backward else xs

    def ours(self, queue: Any, *xs: Any) -> Call:
        if self.op == "softmax":
            return our_backward(ag.softmax, xs[:1], xs[1], (0,)) if self.backward else lambda: ag.softmax(*xs)
        forward, backward = getattr(norm, self.op), getattr(norm, f"{self.op}_grad")
        if not self.backward:
            return lambda: forward(*xs, eps=1e-5)[0]
        *xs, g = xs
        _, *statistics = forward(*xs, eps=1e-5)
        return lambda: [d for d in backward(g, xs[0], *statistics, xs[1]) if d is not None]

    def torch(self, *xs: Any) -> Call:
        if not self.backward:
            return lambda: self._torch(*xs)
        return torch_backward(self._torch, xs[:-1], xs[-1], range(len(xs) - 1))

    def _torch(self, x: Any, *weights: Any) -> Any:
        if self.op == "softmax":
            return functional.softmax(x, -1)
        op = functional.layer_norm if self.op == "layer_norm" else functional.rms_norm
        return op(x, (self.columns,), *weights, eps=1e-5)

    def exact(self, *xs: np.ndarray) -> Any:
        if self.op == "softmax":
            return exact.softmax_grad(*xs) if self.backward else exact.softmax(*xs)
        x, w, b, g = xs[0], xs[1], xs[2] if self.op == "layer_norm" else None, xs[-1]
        return exact.norm_grad(x, w, b, g, 1e-5) if self.backward else exact.norm(x, w, b, 1e-5)

    def bytes(self) -> float:
        return FLOAT * self.rows * self.columns * (3.0 if self.backward else 2.0)


@dataclass(frozen=True)
class Map(Work):
    """One elementwise op, given in each library's words."""

    op: str
    n: int = MILLIONS

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return (normal(rng, self.n),)

    def ours(self, queue: Any, x: Any) -> Call:
        if self.op == "gelu_tanh":
            return lambda: elementwise.gelu(x, approximate="tanh")
        op = getattr(elementwise, self.op)
        return lambda: op(x)

    def torch(self, x: Any) -> Call:
        if self.op == "gelu_tanh":
            return lambda: functional.gelu(x, approximate="tanh")
        op = getattr(functional if self.op == "gelu" else torch, self.op)
        return lambda: op(x)

    def numpy(self, x: np.ndarray) -> Call:
        return {"exp": lambda: np.exp(x), "tanh": lambda: np.tanh(x)}[self.op]

    def exact(self, x: np.ndarray) -> Any:
        if self.op == "gelu_tanh":
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return x * 0.5 * (1 + exact.erf(x / np.sqrt(2))) if self.op == "gelu" else getattr(np, self.op)(x)

    def bytes(self) -> float:
        return 2.0 * FLOAT * self.n


@dataclass(frozen=True)
class Chain(Work):
    """relu(a * b + c) * 0.5: four ops, as one compiled function or one after the other."""

    compiled: bool
    n: int = MILLIONS

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return [normal(rng, self.n) for _ in range(3)]

    def ours(self, queue: Any, a: Any, b: Any, c: Any) -> Call:
        relu, add, mul = ag.relu, ag.add, ag.mul

        def chain(a: Any, b: Any, c: Any) -> Any:
            return mul(relu(add(mul(a, b), c)), 0.5)

        call = net.jit_compile(chain) if self.compiled else chain
        a, b, c = (ag.tensor(x) for x in (a, b, c))
        return lambda: call(a, b, c)

    def torch(self, a: Any, b: Any, c: Any) -> Call:
        relu = torch.relu
        return lambda: relu(a * b + c) * 0.5

    def exact(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Any:
        return np.maximum(a * b + c, 0) * 0.5

    def bytes(self) -> float:
        return FLOAT * self.n * (4.0 if self.compiled else 10.0)  # eager: 2+1, 2+1, 1+1, 1+1


@dataclass(frozen=True)
class Sum(Work):
    """Sum of (rows, columns) over an axis, or over everything."""

    axis: int | None
    rows: int = ROWS
    columns: int = COLUMNS

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return (normal(rng, self.rows, self.columns) + np.float32(0.5),)

    def ours(self, queue: Any, x: Any) -> Call:
        total = reduction.sum
        return lambda: total(x, self.axis)

    def torch(self, x: Any) -> Call:
        return x.sum if self.axis is None else lambda: x.sum(self.axis)

    def numpy(self, x: np.ndarray) -> Call:
        return lambda: x.sum(self.axis)

    def exact(self, x: np.ndarray) -> Any:
        return x.sum(self.axis)

    def bytes(self) -> float:
        return float(FLOAT * self.rows * self.columns)


@dataclass(frozen=True)
class Attention(Work):
    """Causal attention on (batch, heads, length, size); with `both` the gradients of all three inputs as well."""

    both: bool
    batch: int = 2
    heads: int = 8
    length: int = 512
    size: int = 64

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return [normal(rng, self.batch, self.heads, self.length, self.size) for _ in range(4 if self.both else 3)]

    def ours(self, queue: Any, *xs: Any) -> Call:
        def attend(q: Any, k: Any, v: Any) -> Any:
            return ag.attention(q, k, v, causal=True)

        return our_pass(attend, xs[:3], (0, 1, 2), xs[3]) if self.both else lambda: attend(*xs)

    def torch(self, *xs: Any) -> Call:
        def attend(q: Any, k: Any, v: Any) -> Any:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return torch_pass(attend, xs[:3], (0, 1, 2), xs[3]) if self.both else lambda: attend(*xs)

    def exact(self, *xs: np.ndarray) -> Any:
        y = exact.attention(*xs[:3])
        return [y, *exact.attention_grad(*xs)] if self.both else y

    def flops(self) -> float:
        half = 2.0 * self.batch * self.heads * self.length**2 * self.size  # two products, half of them masked
        return half * (3.5 if self.both else 1.0)


@dataclass(frozen=True)
class CrossEntropy(Work):
    """Mean cross-entropy of (rows, classes) with labels, forward and backward."""

    rows: int
    classes: int

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return normal(rng, self.rows, self.classes), rng.integers(0, self.classes, self.rows, np.int32)

    def ours(self, queue: Any, z: Any, labels: Any) -> Call:
        return our_pass(lambda z: ag.cross_entropy(z, labels), (z,), (0,))

    def torch(self, z: Any, labels: Any) -> Call:
        labels = labels.long()
        return torch_pass(lambda z: functional.cross_entropy(z, labels), (z,), (0,))

    exact = staticmethod(exact.cross_entropy)

    def bytes(self) -> float:
        return 3.0 * FLOAT * self.rows * self.classes


@dataclass(frozen=True)
class EmbeddingGrad(Work):
    """Gradient of the weight (10, 8) of an embedding in which one index occurs `count` times."""

    count: int = 1 << 16

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return normal(rng, 10, 8), np.full(self.count, 3, np.int32), normal(rng, self.count, 8)

    def ours(self, queue: Any, w: Any, index: Any, g: Any) -> Call:
        return our_backward(lambda w, index: ag.embedding(w, index), (w, index), g, (0,))

    def torch(self, w: Any, index: Any, g: Any) -> Call:
        return torch_backward(lambda w, index: functional.embedding(index, w), (w, index.long()), g, (0,))

    def exact(self, w: np.ndarray, index: np.ndarray, g: np.ndarray) -> Any:
        dw = np.zeros_like(w)
        np.add.at(dw, index, g)
        return dw

    def bytes(self) -> float:
        return float(FLOAT * 9 * self.count)


def resnet18_shapes(width: int = 64, classes: int = 1000) -> list[tuple[int, ...]]:
    """The 62 parameters of ResNet-18 (11.7 million numbers at width 64)."""
    shapes: list[tuple[int, ...]] = [(width, 3, 7, 7), (width,), (width,)]
    before = width
    for stage in range(4):
        n = width << stage
        layers = [
            (n, before, 3, 3),
            (n, n, 3, 3),
            *([(n, before, 1, 1)] if n != before else []),
            (n, n, 3, 3),
            (n, n, 3, 3),
        ]
        for layer in layers:
            shapes += [layer, (n,), (n,)]
        before = n
    return [*shapes, (classes, before), (classes,)]


@dataclass(frozen=True)
class AdamWStep(Work):
    """One optimizer step over the parameters of ResNet-18. fused: let PyTorch use its fused kernel, not its default."""

    fused: bool = False
    width: int = 64
    classes: int = 1000

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return [normal(rng, *shape) for _ in range(2) for shape in resnet18_shapes(self.width, self.classes)]

    def ours(self, queue: Any, *xs: Any) -> Call:
        half = len(xs) // 2
        params = [ag.Parameter(x) for x in xs[:half]]
        for p, g in zip(params, xs[half:]):
            p.grad = g
        step = optim.AdamW(params, lr=1e-3, weight_decay=1e-2).step

        def run() -> list[Any]:
            step()
            return [p.value for p in params]

        return run

    def torch(self, *xs: Any) -> Call:
        half = len(xs) // 2
        params = [torch_nn.Parameter(x) for x in xs[:half]]
        for p, g in zip(params, xs[half:]):
            p.grad = g
        return torch_optim.AdamW(params, lr=1e-3, weight_decay=1e-2, fused=self.fused or None).step

    def exact(self, *xs: np.ndarray) -> Any:
        half = len(xs) // 2
        optimizer = exact.AdamW(xs[:half], 1e-3, 1e-2)
        optimizer.step(xs[half:])
        return optimizer.params

    def bytes(self) -> float:
        return 7.0 * FLOAT * sum(int(np.prod(s)) for s in resnet18_shapes(self.width, self.classes))


def _square(n: int) -> Matmul:
    return Matmul(n, n, n)


AT_THE_PEAK = (
    "operations: a PyTorch that keeps its memory runs at 88 GFLOP/s a core, nine tenths of a bare multiply-add loop; "
    "no direct kernel is much faster. As PyTorch comes, up to a third of its time goes to fresh pages for the result"
)


def _conv(name: str, target: float, part: str = "forward", note: str = "", **sizes: Any) -> Case:
    """A convolution case; the small one keeps kernel, stride and grouping."""
    groups = 4 if sizes.get("groups", 1) > 1 else 1
    small = sizes | {"n": 2, "c": 4, "h": 11, "o": 4 if groups > 1 else 6, "groups": groups}
    return Case(name, Conv(part, **sizes), Conv(part, **small), target, note=note)


def _pair(name: str, make: Callable[..., Work], targets: tuple[float, float], *small: int) -> list[Case]:
    return [
        Case(f"{name} {word}", make(backward), make(backward, *small), target)
        for word, backward, target in zip(("forward", "backward"), (False, True), targets)
    ]


def _rows(op: str, *targets: float) -> list[Case]:
    return _pair(f"{op} (4096,1024)", lambda *a: Rows(op, *a), (targets[0], targets[1]), 5, 67)


CASES = [
    *(Case(f"matmul {n}", _square(n), Matmul(33, 65, 17), t) for n, t in ((512, 0.95), (1024, 1.0), (2048, 1.0))),
    *(Case(f"matmul {n}, OpenBLAS", _square(n), Matmul(7, 13, 49), 0.9, "numpy") for n in (512, 1024, 2048)),
    Case("matmul (32,784)x(784,256)", Matmul(32, 784, 256), Matmul(5, 19, 16), 0.8),
    Case("matmul (512,784)x(784,256)", Matmul(512, 784, 256), Matmul(12, 7, 33), 0.9),
    Case("matmul 64 of (64,64)x(64,64)", Matmul(64, 64, 64, (64,)), Matmul(9, 8, 17, (3,)), 1.0),
    _conv("conv 3x3 (32,64,56,56)->64 forward", 1.5, note=AT_THE_PEAK),
    _conv("conv 3x3 (32,64,56,56)->64 dX", 1.2, "dx", AT_THE_PEAK),
    _conv("conv 3x3 (32,64,56,56)->64 dW", 1.2, "dw"),
    _conv("conv 1x1 (32,64,56,56)->64", 1.0, kernel=1, padding=0),
    _conv("conv 5x5 (16,64,56,56)->64", 1.0, n=16, kernel=5, padding=2),
    _conv("conv 3x3 stride 2 (32,64,56,56)->64", 1.0, stride=2),
    _conv("conv depthwise 3x3 (32,64,56,56)", 1.0, groups=64),
    _conv("conv 7x7 stride 2 (16,3,224,224)->64", 1.0, n=16, c=3, h=224, kernel=7, stride=2, padding=3),
    *_rows("softmax", 1.5, 1.2),
    *_rows("layer_norm", 2.0, 1.3),
    *_rows("rms_norm", 2.0, 1.3),
    *(Case(f"{op} 4M", Map(op), Map(op, 1003), 3.0) for op in ("gelu", "gelu_tanh", "exp", "tanh")),
    Case("chain of four on 4M, jit", Chain(True), Chain(True, 1003), 5.0),
    Case("chain of four on 4M, eager", Chain(False), Chain(False, 1003), 1.0),
    Case("sum (4096,1024) axis 0", Sum(0), Sum(0, 33, 65), 1.2),
    Case("sum (4096,1024) axis 1", Sum(1), Sum(1, 33, 65), 0.85),
    Case("sum (4096,1024) all", Sum(None), Sum(None, 33, 65), 1.0),
    Case("attention causal (2,8,512,64) forward", Attention(False), Attention(False, 1, 2, 19, 8), 1.2),
    Case("attention causal (2,8,512,64) both", Attention(True), Attention(True, 1, 2, 19, 8), 1.0),
    Case("cross_entropy (4096,10) both", CrossEntropy(4096, 10), CrossEntropy(9, 10), 1.0),
    Case("cross_entropy (2048,32000) both", CrossEntropy(2048, 32000), CrossEntropy(5, 999), 1.2),
    Case("embedding backward, one index 65536 times", EmbeddingGrad(), EmbeddingGrad(37), 1.0),
    Case("AdamW step, 62 tensors, 11.7M", AdamWStep(), AdamWStep(width=4, classes=7), 1.2),
    Case("AdamW step, against torch's fused", AdamWStep(True), AdamWStep(True, 4, 7)),
]
