"""Rows, chains and whole training steps for an NVIDIA GPU, a table of benchmarks/h200.py."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu_cases import Env, GpuCase, Pair

Step = Callable[[], Any]
EPS = 1e-5


def relative(env: Env, got: Sequence[Any], exact: Sequence[Any]) -> float:
    """The largest relative error of several results."""
    return max(env.error(g.double(), e) for g, e in zip(got, exact, strict=True))


# -- rows and chains ---------------------------------------------------------------------------------------------------


def softmax(env: Env, rows: int, n: int, part: str, dtype: str = "float32") -> Pair:
    """softmax along rows, or its gradient."""
    from netcl.ops.normalization import softmax as ops

    torch, x, g = env.torch, env.randn(rows, n, dtype=dtype), env.randn(rows, n, dtype=dtype)
    y = torch.softmax(x, -1)
    tx, tg, ty = env.ours(x), env.ours(g), env.ours(y)
    if part == "forward":
        ours, theirs, exact = (lambda: ops.softmax(tx)), (lambda: torch.softmax(x, -1)), torch.softmax(x.double(), -1)
    else:
        wide = y.double()
        exact = wide * (g.double() - (wide * g.double()).sum(-1, keepdim=True))
        ours = lambda: ops.softmax_grad(tg, ty)  # noqa: E731
        theirs = lambda: torch._softmax_backward_data(g, y, -1, x.dtype)  # noqa: E731
    errors = lambda: (env.error(env.theirs(ours()), exact), env.error(theirs().double(), exact))  # noqa: E731
    return Pair(ours, theirs, errors, bytes=float(x.element_size() * x.numel() * (2 if part == "forward" else 3)))


def cross_entropy(env: Env, rows: int, classes: int) -> Pair:
    """Mean cross-entropy and its gradient."""
    import netcl.autograd as ag

    torch = env.torch
    z, labels = env.randn(rows, classes), torch.randint(0, classes, (rows,), device="cuda")
    leaf = ag.tensor(env.ours(z), requires_grad=True)
    tl, z = env.ours(labels.int()), z.requires_grad_()
    p = torch.softmax(z.detach().double(), -1)
    p[torch.arange(rows, device="cuda"), labels] -= 1
    exact = p / rows

    def ours() -> Any:
        leaf.grad = None
        with ag.Tape() as tape:
            loss = ag.cross_entropy(leaf, ag.tensor(tl))
        tape.backward(loss)
        return leaf.grad

    def theirs() -> Any:
        return torch.autograd.grad(torch.nn.functional.cross_entropy(z, labels), z)[0]

    errors = lambda: (env.error(env.theirs(ours()), exact), env.error(theirs().double(), exact))  # noqa: E731
    return Pair(ours, theirs, errors, bytes=4.0 * rows * classes * 3)


def chain(env: Env, n: int, dtype: str = "float32") -> Pair:
    """relu(x * 0.5) + 1 compiled by netcl against a copy of as many bytes by PyTorch: the ratio is a share of it."""
    import netcl.autograd as ag
    from netcl.autograd.compiler import jit_compile
    from netcl.core.tensor import Tensor

    torch, host = env.torch, np.random.default_rng(0).standard_normal(1 << 20, np.float32)
    x = torch.from_numpy(np.tile(host, n >> 20)).to("cuda").to(getattr(torch, dtype))
    out, host = torch.empty_like(x), host.astype(dtype)
    mine, wanted = ag.tensor(Tensor.from_host(env.queue, np.tile(host, n >> 20))), host.astype(np.float32)
    compiled = jit_compile(lambda x: ag.add(ag.relu(ag.mul(x, 0.5)), 1.0))
    errors = lambda: (  # noqa: E731
        float(np.abs(compiled(mine).value.to_host()[-(1 << 20) :] - (np.maximum(wanted * 0.5, 0) + 1)).max()), 0.0,
    )  # fmt: skip
    return Pair(lambda: compiled(mine), lambda: out.copy_(x), errors, bytes=2.0 * n * host.itemsize)


# -- steps -------------------------------------------------------------------------------------------------------------


def graphed(env: Env, step: Step) -> Step:
    """A CUDA graph of a PyTorch step, replayed."""
    torch = env.torch
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay  # type: ignore[no-any-return]


def perceptron(env: Env, batch: int, graph: bool) -> Pair:
    """An AdamW step of 784-256-128-10, recorded, against PyTorch eager (fused optimizer) or its CUDA graph.

    Ours runs in a process of its own: launches take half as long again where CUDA is in use in the same process.
    """
    from benchmarks.cases_step import DECAY, MLP, RATE
    from netcl.core.tensor import Tensor

    torch, case = env.torch, MLP(batch, True)
    arrays = list(case.inputs(np.random.default_rng(0)))
    x, labels, *weights = (Tensor.from_host(env.queue, a) for a in arrays)
    layers: list[Any] = []
    for k, n in ((784, 256), (256, 128), (128, 10)):
        layers += [torch.nn.Linear(k, n), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True, capturable=graph)
    cx, cl = torch.from_numpy(arrays[0]).cuda(), torch.from_numpy(arrays[1]).long().cuda()

    def eager() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(cx), cl).backward()
        optimizer.step()

    torch.backends.cuda.matmul.allow_tf32 = False
    theirs = graphed(env, eager) if graph else eager

    def errors() -> tuple[float, float]:
        exact, got = case.exact(*arrays), case.trained(env.queue, x, labels, *weights)
        pairs = [(np.asarray(getattr(g, "value", g).to_host(), np.float64), e) for g, e in zip(got, exact)]
        return max(float(np.linalg.norm(g.reshape(np.shape(e)) - e) / np.linalg.norm(e)) for g, e in pairs), 0.0

    return Pair(lambda: None, theirs, errors, case.flops(), seconds=apart(batch))


def apart(batch: int) -> Callable[[int], float]:
    """A function that has another process take so many recorded steps and returns their seconds."""
    command = [sys.executable, "-m", "benchmarks.gpu_steps", str(batch)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(calls: int) -> float:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(f"{calls}\n")
        child.stdin.flush()
        return float(child.stdout.readline())

    return seconds


def serve(batch: int) -> None:
    """The other process of `apart`: ends with its input."""
    from benchmarks.cases_step import MLP, our_step
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor

    case, queue = MLP(batch, True), manager.default("gpu").queue
    x, labels, *weights = (Tensor.from_host(queue, a) for a in case.inputs(np.random.default_rng(0)))
    step = our_step(case.model(queue), queue, weights, True)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            step(x, labels)
        queue.finish()
        print(time.perf_counter() - start, flush=True)


def trained_alike(env: Env, ours: Any, theirs: Any, weights: Sequence[Any], data: Sequence[Any], graph: bool) -> Pair:
    """Forward and backward of y = f(weights, data) with the upstream gradient data[-1]; gradients of all weights.

    `ours` and `theirs` take (weights, inputs); netcl's is recorded. Errors are those of the gradients, by norms.
    """
    import netcl.autograd as ag

    torch = env.torch
    params = [ag.Parameter(env.ours(w)) for w in weights]
    inputs = [env.ours(d) for d in data]

    def step(*inputs: Any) -> Any:
        with ag.Tape() as tape:
            y = ours(params, [ag.tensor(x) for x in inputs[:-1]])
        tape.backward(y, inputs[-1])
        grads = [p.grad for p in params]
        for p in params:
            p.grad = None
        return grads

    run = ag.CompiledStep(step)
    leaves = [w.clone().requires_grad_() for w in weights]
    wide = [w.double().requires_grad_() for w in weights]
    exact = torch.autograd.grad(theirs(wide, [d.double() for d in data[:-1]]), wide, data[-1].double())
    call = lambda: torch.autograd.grad(theirs(leaves, data[:-1]), leaves, data[-1])  # noqa: E731

    def errors() -> tuple[float, float]:
        for _ in range(3):
            grads = run(*inputs)
        return relative(env, [env.theirs(g) for g in grads], exact), relative(env, call(), exact)

    return Pair(lambda: run(*inputs), graphed(env, call) if graph else call, errors)


def residual_stage(env: Env, dtype: str, graph: bool = False, n: int = 128, c: int = 64, size: int = 32) -> Pair:
    """Two residual blocks: four 3x3 convolutions with batch norm and relu, forward and backward."""
    import netcl.autograd as ag

    torch = env.torch
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = False, True
    convs = [env.randn(c, c, 3, 3, dtype=dtype) * (9 * c) ** -0.5 for _ in range(4)]
    scales = [env.randn(c, dtype=dtype) * 0.1 + 1 for _ in range(4)]
    shifts = [env.randn(c, dtype=dtype) * 0.1 for _ in range(4)]
    data = [env.randn(n, c, size, size, dtype=dtype) for _ in range(2)]

    def ours(params: Sequence[Any], inputs: Sequence[Any]) -> Any:
        x = inputs[0]
        for i in (0, 2):
            y = ag.conv2d(x, params[i], padding=1)
            y = ag.batch_norm(y, params[4 + i], params[8 + i], activation="relu")
            y = ag.conv2d(y, params[i + 1], padding=1)
            x = ag.relu(ag.add(ag.batch_norm(y, params[5 + i], params[9 + i]), x))
        return x

    def theirs(params: Sequence[Any], inputs: Sequence[Any]) -> Any:
        f, x = torch.nn.functional, inputs[0]
        for i in (0, 2):
            y = f.conv2d(x, params[i], padding=1)
            y = f.relu(f.batch_norm(y, None, None, params[4 + i], params[8 + i], True))
            y = f.conv2d(y, params[i + 1], padding=1)
            x = f.relu(f.batch_norm(y, None, None, params[5 + i], params[9 + i], True) + x)
        return x

    pair = trained_alike(env, ours, theirs, [*convs, *scales, *shifts], data, graph)
    return pair._replace(flops=2.0 * n * c * c * 9 * size**2 * 11)  # the first convolution needs no input gradient


def decoder_layer(
    env: Env, dtype: str, graph: bool = False, batch: int = 8, length: int = 1024, width: int = 768, heads: int = 12
) -> Pair:
    """A pre-norm transformer layer written from ops, forward and backward."""
    import netcl.autograd as ag

    torch, e = env.torch, width
    torch.backends.cuda.matmul.allow_tf32 = False
    sizes = [(3 * e, e), (3 * e,), (e, e), (e,), (4 * e, e), (4 * e,), (e, 4 * e), (e,)]
    weights = [env.randn(*s, dtype=dtype) * (s[-1] ** -0.5 if len(s) == 2 else 0.1) for s in sizes]
    weights += [env.randn(e, dtype=dtype) * 0.1 + (1 - i % 2) for i in range(4)]
    data = [env.randn(batch, length, e, dtype=dtype) for _ in range(2)]
    shape = (batch, length, 3, heads, e // heads)

    def ours(p: Sequence[Any], inputs: Sequence[Any]) -> Any:
        x = inputs[0]
        h = ag.linear(ag.layer_norm(x, p[8], p[9]), p[0], p[1])
        q, k, v = (ag.getitem(ag.permute(ag.reshape(h, *shape), 2, 0, 3, 1, 4), i) for i in range(3))
        a = ag.reshape(ag.permute(ag.attention(q, k, v, causal=True), 0, 2, 1, 3), batch, length, e)
        x = ag.add(x, ag.linear(a, p[2], p[3]))
        h = ag.linear_gelu(ag.layer_norm(x, p[10], p[11]), p[4], p[5])
        return ag.add(x, ag.linear(h, p[6], p[7]))

    def theirs(p: Sequence[Any], inputs: Sequence[Any]) -> Any:
        f, x = torch.nn.functional, inputs[0]
        h = f.linear(f.layer_norm(x, (e,), p[8], p[9]), p[0], p[1])
        q, k, v = h.reshape(shape).permute(2, 0, 3, 1, 4)
        a = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, e)
        x = x + f.linear(a, p[2], p[3])
        return x + f.linear(f.gelu(f.linear(f.layer_norm(x, (e,), p[10], p[11]), p[4], p[5])), p[6], p[7])

    pair = trained_alike(env, ours, theirs, weights, data, graph)
    return pair._replace(flops=3 * 2.0 * batch * length * (12 * e * e) + 3.5 * 2.0 * batch * length**2 * e)


def _case(name: str, target: float | None, make: Callable[..., Pair], **how: Any) -> GpuCase:
    return GpuCase(name, partial(make, **how), target)


CASES = (
    _case("softmax (8192,4096) forward", 1.3, softmax, rows=8192, n=4096, part="forward"),
    _case("softmax (8192,4096) backward", 1.1, softmax, rows=8192, n=4096, part="backward"),
    _case("cross-entropy (8192,50304) both", 1.2, cross_entropy, rows=8192, classes=50304),
    _case("chain on 256M, jit, share of a copy", 0.95, chain, n=1 << 28),
    _case("chain on 256M fp16, jit, share of a copy", 0.95, chain, n=1 << 28, dtype="float16"),
    _case("chain on 256M bf16, jit, share of a copy", 0.95, chain, n=1 << 28, dtype="bfloat16"),
    _case("MLP batch 32 against eager", 10.0, perceptron, batch=32, graph=False),
    _case("MLP batch 32 against a CUDA graph", 1.0, perceptron, batch=32, graph=True),
    _case("MLP batch 512 against eager", 10.0, perceptron, batch=512, graph=False),
    _case("MLP batch 512 against a CUDA graph", 1.0, perceptron, batch=512, graph=True),
    _case("residual stage fp32", 1.2, residual_stage, dtype="float32"),
    _case("residual stage fp16", 0.9, residual_stage, dtype="float16"),
    _case("residual stage bf16", 0.9, residual_stage, dtype="bfloat16"),
    _case("decoder layer fp32 high", 1.5, decoder_layer, dtype="float32"),
    _case("decoder layer fp16", 0.6, decoder_layer, dtype="float16"),
    _case("decoder layer bf16", 0.6, decoder_layer, dtype="bfloat16"),
)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
