"""Node: a tensor in the graph that the tape follows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from netcl.autograd.state import not_traced, state
from netcl.core.dtypes import DType, is_float
from netcl.core.errors import DTypeError, GradientError
from netcl.core.feel import Feel
from netcl.core.layout import Shape
from netcl.core.methods import Methods
from netcl.core.tensor import Tensor

_keys = itertools.count()
OPERATORS: dict[str, Callable[..., Any]] = {}  # ops on nodes by name, filled by netcl.autograd.functional
INSPECT: dict[str, Callable[..., Any]] = {}  # filled by debug.py and hooks.py, which know tapes


class Node(Feel, Methods):
    """A value and its place in the graph. `.grad` holds the gradient of leaves after `tape.backward`."""

    __slots__ = ("__weakref__", "grad", "key", "name", "op_name", "requires_grad", "tape", "value")
    __array_priority__ = 200.0
    __hash__ = object.__hash__
    _operations = OPERATORS
    _several = OPERATORS
    _operands = (object,)  # ops say what they do not take

    def __init__(self, value: Tensor, requires_grad: bool = False, op_name: str = "", tape: Any = None) -> None:
        self.value, self.requires_grad, self.op_name, self.tape = value, requires_grad, op_name, tape
        self.grad: Tensor | None = None
        self.key = next(_keys)
        self.name: str | None = None

    # -- the value's facts -----------------------------------------------------------------------------------------
    @property
    def shape(self) -> Shape:
        """Shape of the value."""
        return self.value.shape

    @property
    def dtype(self) -> DType:
        """Dtype of the value."""
        return self.value.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.value.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.value.size

    @property
    def queue(self) -> Any:
        """Queue of the value."""
        return self.value.queue

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded op made this node."""
        return self.tape is None

    @property
    def grad_fn(self) -> Any:
        """How gradients pass the op that made this node: callable with the upstream gradient; None for a leaf."""
        return INSPECT["grad_fn"](self)

    @property
    def parents(self) -> tuple[Any, ...]:
        """The inputs of the op that made this node (shape, dtype, op_name; the node itself for leaves)."""
        return tuple(INSPECT["parents"](self))

    @property
    def creation_trace(self) -> str:
        """The line that called the op, kept in `detect_anomaly` mode; else ""."""
        return str(INSPECT["creation_trace"](self))

    @property
    def T(self) -> Node:
        """All axes reversed."""
        y: Node = OPERATORS["permute"](self)
        return y

    def to_host(self) -> np.ndarray:
        """The value as a NumPy array (waits)."""
        return self.value.to_host()

    numpy = to_host

    def item(self) -> Any:
        """The value of a one-element node as a Python number (waits)."""
        return self.value.item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The value on the host, outside the graph: `np.asarray(node)`, and NumPy's own functions, see numbers."""
        return self.value.__array__(dtype, copy)

    def __len__(self) -> int:
        return len(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        origin = f", op={self.op_name}" if self.op_name else ", requires_grad=True" if self.requires_grad else ""
        return f"Node({self.value!r}{origin})"

    def _target(self, where: str) -> Tensor:
        if self.tape is not None or (self.requires_grad and state.enabled):
            raise GradientError(
                f"{where}: expected a value that no gradient goes through, got a "
                f"{'result on a tape' if self.tape is not None else 'leaf that requires one'}; "
                "write inside `with no_grad():`, or to a copy."
            )
        return self.value

    # -- graph -----------------------------------------------------------------------------------------------------
    def detach(self) -> Node:
        """The same value outside the graph."""
        return Node(self.value)

    def requires_grad_(self, requires_grad: bool = True) -> Node:
        """Ask for (or refuse) a gradient, in place. Only leaves of floating type can be asked."""
        if requires_grad:
            _differentiable(self.value)
        if not self.is_leaf:
            raise GradientError(f"requires_grad_: expected a leaf, got the result of {self.op_name!r}; use detach().")
        self.requires_grad = requires_grad
        return self

    def retain_grad(self) -> Node:
        """Keep this intermediate node's gradient in `.grad` too."""
        not_traced("calls retain_grad")
        if self.tape is not None:
            self.tape.retained[self.key] = self
        return self

    def register_hook(self, hook: Callable[[Tensor], Any]) -> Any:
        """Call hook(gradient) whenever this node's gradient is known; returns a handle with `remove()`.

        The gradient is the sum over all uses; a tensor that the hook returns takes its place, here and further back. A
        hook on a result goes with the graph. In a CompiledStep what the hook computes is recorded, its Python is not.
        Raises GradientError for a node that requires no gradient.
        """
        not_traced("calls register_hook")
        return INSPECT["register_hook"](self, hook)

    def backward(self, grad: Tensor | None = None, retain_graph: bool = False) -> None:
        """`tape.backward(self)` on the tape that recorded this node."""
        if self.tape is None:
            raise GradientError(
                "backward: expected a node recorded on a tape, got a leaf; compute it inside `with Tape():`."
            )
        self.tape.backward(self, grad, retain_graph)

    def __copy__(self) -> Node:
        """The same value at the same place in the graph."""
        twin = type(self).__new__(type(self))
        for name in Node.__slots__[1:]:
            setattr(twin, name, getattr(self, name))
        return twin

    def __reduce__(self) -> Any:
        """For deep copies and pickles to other processes: value, gradient and name as a leaf; the graph stays here."""
        wanted = self.requires_grad and self.tape is None
        return _restored, (type(self), self.value, wanted, self.grad, self.name)


class Parameter(Node):
    """A leaf that an optimizer updates. `value` may be replaced or written in place; the node stays the same object."""

    __slots__ = ()

    def __init__(self, value: Tensor | Node, name: str | None = None, requires_grad: bool = True) -> None:
        if not isinstance(value, (Tensor, Node)):
            raise DTypeError(
                f"Parameter: expected a Tensor, got {type(value).__name__}; use Tensor.from_host(queue, data)."
            )
        super().__init__(value.value if isinstance(value, Node) else value)
        if requires_grad:
            _differentiable(self.value)
        self.requires_grad, self.name = requires_grad, name

    def __repr__(self) -> str:
        return f"Parameter({self.value!r})"


def _restored(kind: type[Node], value: Tensor, requires_grad: bool, grad: Tensor | None, name: str | None) -> Node:
    """A node that was copied or came from another process."""
    node = kind(value, requires_grad=requires_grad)
    node.grad, node.name = grad, name
    return node


def _differentiable(value: Tensor) -> None:
    if not is_float(value.dtype):
        raise DTypeError(f"requires_grad: expected a float16, bfloat16, float32 or float64 tensor, got {value.dtype}.")


Value = Node | Tensor  # what ops take
Operand = Node | Tensor | int | float | np.number | np.bool_  # what elementwise ops take


def tensor(x: Tensor | Node, requires_grad: bool = False) -> Node:
    """Wrap a Tensor as a node. With `requires_grad` its gradient is kept in `.grad` after backward."""
    if isinstance(x, Node):
        return x
    if not isinstance(x, Tensor):
        raise DTypeError(
            f"ag.tensor: expected a Tensor, got {type(x).__name__}; make one with Tensor.from_host(queue, data)."
        )
    if requires_grad:
        _differentiable(x)
    return Node(x, requires_grad)
