"""Cases of norms and attention for an NVIDIA GPU, a table of benchmarks/h200.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.gpu_cases import Env, GpuCase, Pair

EPS = 1e-5


def _pair(env: Env, ours: Any, theirs: Any, exact: Sequence[Any], pick: Callable[[Any], Any], **rates: float) -> Pair:
    """A pair whose results (one or several) are compared where `pick` looks."""

    def error(results: Any) -> float:
        results = results if isinstance(results, (tuple, list)) else (results,)
        return max(env.error(pick(got).double(), e) for got, e in zip(results, exact) if got is not None)

    def errors() -> tuple[float, float]:
        mine = ours()
        mine = mine if isinstance(mine, (tuple, list)) else (mine,)
        return error([None if t is None else env.theirs(t) for t in mine]), error(theirs())

    return Pair(ours, theirs, errors, **rates)


def norm(env: Env, op: str, rows: int, n: int, backward: bool = False, dtype: str = "float32") -> Pair:
    """layer_norm or rms_norm along rows, or its gradients."""
    import importlib

    ops, torch = importlib.import_module("netcl.ops.norm"), env.torch
    x, g = env.randn(rows, n, dtype=dtype), env.randn(rows, n, dtype=dtype)
    w, b = env.randn(n, dtype=dtype), env.randn(n, dtype=dtype)

    def reference(x: Any, w: Any, b: Any) -> Any:
        if op == "layer_norm":
            return torch.nn.functional.layer_norm(x, (n,), w, b, EPS)
        return torch.nn.functional.rms_norm(x, (n,), w, EPS)

    tx, tg, tw, tb = (env.ours(t) for t in (x, g, w, b))
    size = x.element_size() * rows * n
    if not backward:
        mine = {
            "layer_norm": lambda: ops.layer_norm(tx, tw, tb, eps=EPS)[0],
            "rms_norm": lambda: ops.rms_norm(tx, tw, eps=EPS)[0],
        }
        exact = [reference(x.double(), w.double(), b.double())]
        return _pair(env, mine[op], lambda: reference(x, w, b), exact, lambda t: t, bytes=2.0 * size)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)][: 3 if op == "layer_norm" else 2]
    y = reference(*leaves, *[b] * (3 - len(leaves)))
    wide = [t.detach().double().requires_grad_() for t in leaves]
    exact = torch.autograd.grad(reference(*wide, *[b.double()] * (3 - len(wide))), wide, g.double())
    stats = ops.layer_norm(tx, tw, tb, eps=EPS)[1:] if op == "layer_norm" else ops.rms_norm(tx, tw, eps=EPS)[1:]
    call = ops.layer_norm_grad if op == "layer_norm" else ops.rms_norm_grad
    return _pair(
        env, lambda: call(tg, tx, *stats, tw), lambda: torch.autograd.grad(y, leaves, g, retain_graph=True), exact,
        lambda t: t, bytes=3.0 * size,
    )  # fmt: skip


def channels(env: Env, op: str, shape: tuple[int, ...], backward: bool = False, dtype: str = "float32") -> Pair:
    """batch_norm in training, or group_norm with 8 groups, or gradients."""
    import importlib

    torch = env.torch
    ops = importlib.import_module(f"netcl.ops.{op}")
    c = shape[1]
    x, g = (env.randn(*shape, dtype=dtype) for _ in range(2))
    w, b = (env.randn(c) for _ in range(2))

    def reference(x: Any, w: Any, b: Any) -> Any:
        if op == "batch_norm":
            return torch.nn.functional.batch_norm(x, None, None, w, b, True, 0.1, EPS)
        return torch.nn.functional.group_norm(x, 8, w.to(x.dtype), b.to(x.dtype), EPS)

    tx, tg, tw, tb = (env.ours(t) for t in (x, g, w, b))
    forward = (lambda: ops.batch_norm(tx, tw, tb)) if op == "batch_norm" else (lambda: ops.group_norm(tx, 8, tw, tb))
    size = float(x.element_size() * x.numel())
    if not backward:
        exact = [reference(x.double(), w.double(), b.double())]
        return _pair(env, lambda: forward()[0], lambda: reference(x, w, b), exact, lambda t: t, bytes=2 * size)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    y = reference(*leaves)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    exact = torch.autograd.grad(reference(*wide), wide, g.double())
    stats, call = forward()[1:], getattr(ops, f"{op}_grad")
    return _pair(
        env, lambda: call(tg, tx, *stats, tw), lambda: torch.autograd.grad(y, leaves, g, retain_graph=True), exact,
        lambda t: t, bytes=3 * size,
    )  # fmt: skip


def attention(
    env: Env,
    both: bool,
    dtype: str,
    shape: tuple[int, int, int, int] = (4, 16, 4096, 64),
    units: bool = True,
    mask: str = "causal",
) -> Pair:
    """Attention, with `both` its gradients too; compared on the last head of the last sample.

    mask: "causal", "none", or one of all samples and heads: "bool", three keys of four, or "add".
    """
    import importlib

    from netcl.ops.nvidia import probe

    ops, torch = importlib.import_module("netcl.ops.attention"), env.torch
    xs = [env.randn(*shape, dtype=dtype) for _ in range(4)]
    square, masks = (1, 1, shape[2], shape[2]), dict[str, Any]()
    if mask == "bool":
        masks["mask"] = env.randn(*square, dtype="float32") < 0.67
    elif mask == "add":
        masks["mask"] = env.randn(*square, dtype=dtype)

    def sdpa(*tensors: Any) -> Any:
        one = masks.get("mask")
        one = one.to(tensors[0].dtype) if mask == "add" else one
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(*tensors, attn_mask=one, is_causal=mask == "causal")

    options = {"causal": mask == "causal", **{name: env.ours(t) for name, t in masks.items()}}
    q, k, v, g = (env.ours(t) for t in xs)
    leaves = [t.clone().requires_grad_() for t in xs[:3]]
    wide = [t[-1:, -1:].double().requires_grad_() for t in xs[:3]]
    o = sdpa(*wide)
    exact = torch.autograd.grad(o, wide, xs[3][-1:, -1:].double()) if both else [o.detach()]

    def forward() -> Any:
        o, lse = ops.attention(q, k, v, **options)
        return ops.attention_grad(g, q, k, v, o, lse, **options) if both else o

    def portable() -> Any:
        with probe.only():
            return forward()

    def theirs() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = False
        if not both:
            return sdpa(*xs[:3])
        return torch.autograd.grad(sdpa(*leaves), leaves, xs[3])

    batch, heads, length, size = shape
    flops = (2.0 if mask == "causal" else 4.0) * batch * heads * length * length * size * (3.5 if both else 1.0)
    return _pair(env, forward if units else portable, theirs, exact, lambda t: t[-1:, -1:], flops=flops)


IMAGES = (128, 64, 32, 32)
PARTS = ("forward", "backward")


def _norms(op: str, n: int, dtype: str, targets: tuple[float | None, ...]) -> list[GpuCase]:
    return [
        GpuCase(f"{op} (8192,{n}) {dtype} {part}", partial(norm, op=op, rows=8192, n=n, backward=i > 0, dtype=dtype), t)
        for i, (part, t) in enumerate(zip(PARTS, targets))
    ]


def _channels(op: str, dtype: str) -> list[GpuCase]:
    return [
        GpuCase(f"{op} {IMAGES} {dtype} {part}", partial(channels, op=op, shape=IMAGES, backward=i == 1, dtype=dtype))
        for i, part in enumerate(PARTS)
    ]


def _attention(name: str, target: float | None, **how: Any) -> GpuCase:
    return GpuCase(f"attention {name}", partial(attention, **how), target)


FLOATS = ("float32", "float16", "bfloat16")
CASES = (
    *_norms("layer_norm", 4096, "float32", (1.3, 1.1)),
    *_norms("rms_norm", 4096, "float32", (None, None)),
    *_norms("layer_norm", 768, "float16", (None, None)),
    *_norms("layer_norm", 768, "bfloat16", (None, None)),
    *(case for op in ("batch_norm", "group_norm") for dtype in FLOATS for case in _channels(op, dtype)),
    _attention("fp16 forward", 0.7, both=False, dtype="float16"),
    _attention("fp16 both", 0.6, both=True, dtype="float16"),
    _attention("bf16 forward", 0.7, both=False, dtype="bfloat16"),
    _attention("bf16 both", 0.6, both=True, dtype="bfloat16"),
    _attention("fp32 forward", 1.5, both=False, dtype="float32"),
    _attention("fp32 both", 1.3, both=True, dtype="float32"),
    *(
        _attention(f"fp16 {mask} mask {part}", None, both=part == "both", dtype="float16", mask=mask)
        for part in ("forward", "both")
        for mask in ("none", "bool", "add")
    ),
    _attention("portable fp16 forward", None, both=False, dtype="float16", units=False),
    _attention("portable fp32 forward", None, both=False, dtype="float32", units=False),
    _attention("portable fp32 both", None, both=True, dtype="float32", units=False),
    _attention("fp16 (8,12,1024,64) both", None, both=True, dtype="float16", shape=(8, 12, 1024, 64)),
    _attention("fp16 (4,8,4096,128) forward", None, both=False, dtype="float16", shape=(4, 8, 4096, 128)),
    _attention("fp16 (4,8,4096,128) both", None, both=True, dtype="float16", shape=(4, 8, 4096, 128)),
)
