"""Gradients of views and other movements of elements: each is the movement undone."""

from __future__ import annotations

from typing import Any

from netcl.autograd.op import register_op
from netcl.core.tensor import Tensor
from netcl.ops import elementwise, movement

register_op("reshape", lambda x, shape: Tensor.reshape(x, shape), lambda g, y, x, shape: g.reshape(x.shape), saves=())
register_op("astype", lambda x, dtype: Tensor.astype(x, dtype), lambda g, y, x, dtype: g.astype(x.dtype), saves=())
register_op("expand", lambda x, shape: Tensor.expand(x, shape), lambda g, y, x, shape: g, saves=())
register_op(
    "squeeze", lambda x, axis=None: Tensor.squeeze(x, axis), lambda g, y, x, axis=None: g.reshape(x.shape), saves=()
)
register_op("unsqueeze", lambda x, axis: Tensor.unsqueeze(x, axis), lambda g, y, x, axis: g.reshape(x.shape), saves=())
register_op("contiguous", lambda x: Tensor.contiguous(x), lambda g, y, x: g, saves=())
register_op("to", lambda x, queue: x.to(queue), lambda g, y, x, queue: g.to(x.queue).astype(x.dtype), saves=())


def _permute_grad(g: Tensor, y: Any, x: Any, axes: tuple[int, ...]) -> Tensor:
    order = [a % len(axes) for a in axes]
    return g.permute(*[order.index(i) for i in range(len(order))])


register_op("permute", lambda x, axes: Tensor.permute(x, *axes), _permute_grad, saves=())


def _getitem_grad(g: Tensor, y: Any, x: Any, key: Any) -> Tensor:
    dx = Tensor.zeros(g.queue, x.shape, g.dtype)
    elementwise.assign(dx[key], g)
    return dx


register_op("getitem", lambda x, key: Tensor.__getitem__(x, key), _getitem_grad, saves=())


def _concat_grad(g: Tensor, y: Any, *xs: Any, axis: int = 0) -> list[Tensor]:
    axis, start, parts = axis % g.ndim, 0, []
    for x in xs:
        n = x.shape[axis]
        parts.append(g[(slice(None),) * axis + (slice(start, start + n),)])
        start += n
    return parts


register_op("concat", lambda *xs, axis=0: movement.concat(xs, axis), _concat_grad, saves=())
register_op(
    "stack",
    lambda *xs, axis=0: movement.stack(xs, axis),
    lambda g, y, *xs, axis=0: [g[(slice(None),) * (axis % g.ndim) + (i,)] for i in range(len(xs))],
    saves=(),
)
register_op(
    "flip", lambda x, axis=None: movement.flip(x, axis), lambda g, y, x, axis=None: movement.flip(g, axis), saves=()
)


def _roll_grad(g: Tensor, y: Any, x: Any, shift: Any, axis: Any = None) -> Tensor:
    back = tuple(-s for s in shift) if isinstance(shift, (tuple, list)) else -shift
    return movement.roll(g, back, axis)


register_op("roll", lambda x, shift, axis=None: movement.roll(x, shift, axis), _roll_grad, saves=())


def _pad_grad(g: Tensor, y: Any, x: Any, widths: Any, value: float = 0.0) -> Tensor:
    """What was put on comes off, and what was cut off comes back as zeros."""
    return movement.pad(g, tuple((-before, -after) for before, after in widths))


register_op("pad", lambda x, widths, value=0.0: movement.pad(x, widths, value=value), _pad_grad, saves=())


def _split_grad(g: tuple[Tensor | None, ...], y: Any, x: Any, sizes: Any, axis: int = 0) -> Tensor:
    """The parts joined again, with zeros for those that nothing came back from."""
    queue, dtype = next((p.queue, p.dtype) for p in g if p is not None)
    parts = [Tensor.zeros(queue, v.shape, dtype) if p is None else p for p, v in zip(g, y)]
    return movement.concat(parts, axis)


register_op("split", lambda x, sizes, axis=0: movement.split(x, sizes, axis), _split_grad, saves=())
