"""Tensor: memory on a device seen through shape, strides and offset. It knows nothing of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netcl.core import host_memory, layout, live, settings, versions
from netcl.core.backend import opencl
from netcl.core.device.discovery import names_device, queue_of
from netcl.core.device.profile import profile_of
from netcl.core.device.transfer import Place, place_of, queue_at
from netcl.core.dtypes import BFLOAT16, BOOL, FLOAT64, UINT8, DType, as_dtype, check_number, on_device, transferable
from netcl.core.errors import DeviceError, DTypeError, ShapeError
from netcl.core.feel import INDEXING, Feel, is_basic
from netcl.core.keywords import axis_of, needed_axis
from netcl.core.layout import Shape, as_int
from netcl.core.memory import pool_of
from netcl.core.methods import Methods
from netcl.core.protocols import Queue
from netcl.core.queue import CPUQueue, state_of

OPERATIONS: dict[str, Callable[..., Any]] = {}  # filled by netcl.ops: core itself compiles nothing
LARGE_FILL = 1 << 24  # bytes from which a GPU fills by a kernel (ops/create/fill.py)


class Tensor(Feel, Methods):
    """A view of device memory: `buffer` seen through `shape`, `strides` and `offset` (both in elements) as `dtype`.

    Views (`reshape`, `transpose`, `expand`, basic indexing, ...) share memory and cost no copy. Work is sent to `queue`
    and not waited for; `to_host`, `item` and printing are the only waits.
    """

    __slots__ = ("__weakref__", "buffer", "dtype", "offset", "queue", "shape", "strides")
    __array_priority__ = 100.0  # NumPy leaves `array + tensor` to us
    __hash__ = object.__hash__

    def __init__(self, buffer: Any, shape: Shape, strides: Shape, offset: int, dtype: DType, queue: Queue) -> None:
        self.buffer, self.shape, self.strides, self.offset = buffer, shape, strides, offset
        self.dtype, self.queue = dtype, queue

    # -- making tensors ------------------------------------------------------------------------------------------

    @staticmethod
    def empty(queue: Any, shape: Any, dtype: Any = "float32") -> Tensor:
        """A tensor of `shape` with undefined values."""
        queue = queue_of("Tensor.empty", queue)
        shape = layout.as_shape("Tensor.empty", shape)
        dtype = storable(as_dtype(dtype), queue)
        return _allocate(queue, shape, dtype)

    @staticmethod
    def from_host(
        queue: Any,
        data: Any,
        dtype: Any = None,
        backend: str | None = None,
        async_copy: bool | None = None,
        use_pinned: bool | None = None,
    ) -> Tensor:
        """A copy of `data` (anything NumPy can take) on `queue`; its dtype is kept unless `dtype` is given.

        Here and wherever a queue is asked for, a device's handle or name ("auto", "gpu:1") does as well; None is the
        default device.

        The transfer is not waited for, and later changes of `data` never show. Python floats become float32.
        Args: backend: checked against the queue when given. async_copy=False waits for the transfer, as
            NETCL_ASYNC_H2D=0 does for all.
            use_pinned: accepted for compatibility; staging memory is chosen by size and device.
        """
        queue = queue_of("Tensor.from_host", queue)
        _check_backend(queue, backend)
        array = np.asarray(data)
        if dtype is None and not isinstance(data, (np.ndarray, np.generic)) and array.dtype == FLOAT64:
            dtype = "float32"
        target = storable(as_dtype(array.dtype if dtype is None else dtype), queue)
        tensor = _allocate(queue, array.shape, target)
        array = host_memory.converted("from_host", array, target)
        if isinstance(queue, CPUQueue):
            tensor.array[...] = array
            tensor._tell("write", array)
        else:
            opencl.write(queue, tensor.buffer, array)
            if async_copy is False or not settings.value("NETCL_ASYNC_H2D"):
                opencl.finish(queue)
        return tensor

    @staticmethod
    def from_shape(queue: Queue, shape: Any, dtype: Any = "float32", fill: Any = 0) -> Tensor:
        """A tensor of `shape` holding `fill` everywhere."""
        return Tensor.full(queue, shape, fill, dtype)

    @staticmethod
    def zeros(queue: Queue, shape: Any, dtype: Any = "float32") -> Tensor:
        """A tensor of zeros."""
        return Tensor.full(queue, shape, 0, dtype)

    @staticmethod
    def ones(queue: Queue, shape: Any, dtype: Any = "float32") -> Tensor:
        """A tensor of ones."""
        return Tensor.full(queue, shape, 1, dtype)

    @staticmethod
    def full(queue: Queue, shape: Any, value: Any, dtype: Any = "float32") -> Tensor:
        """A tensor of `shape` holding `value` everywhere."""
        return Tensor.empty(queue, shape, dtype)._fill(value)

    def fill_(self, value: Any) -> Tensor:
        """Set every element to `value`, in place. Raises NumberOutOfRange where the dtype cannot hold it."""
        versions.wrote(self, where="fill_")
        return self._fill(value)

    def _fill(self, value: Any) -> Tensor:
        """`fill_` of memory that nothing has read yet."""
        if self.dtype.kind in "iu":
            check_number("fill_", value, self.dtype)
        if self.size == 0:
            return self
        if isinstance(self.queue, CPUQueue):
            self.array[...] = value
            self._tell("fill", value)
        elif self.is_contiguous:
            pattern = transferable(self.dtype.type(value))
            pattern = pattern.view(np.uint8) if self.dtype == BOOL else pattern
            start, nbytes = self.offset * self.dtype.itemsize, self.nbytes
            if start + nbytes > opencl.FILL_END or (nbytes >= LARGE_FILL and profile_of(self.queue).kind == "gpu"):
                OPERATIONS["fill"](self, pattern)
            else:
                opencl.fill_buffer(self.queue, self.buffer, pattern, nbytes, start)
        else:
            OPERATIONS["assign"](self, Tensor.full(self.queue, (1,), value, self.dtype).expand(self.shape))
        return self

    def _tell(self, kind: str, value: Any) -> None:
        """Report a copy or fill on NumPy to the same hooks as OpenCL's, with the tensor in place of a buffer."""
        for hook in opencl.copy_hooks:
            hook(kind, self.queue, self, value, self.nbytes, (), None)

    # -- what it is ----------------------------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """ "cl" for OpenCL, "cpu" for NumPy."""
        return "cpu" if isinstance(self.queue, CPUQueue) else "cl"

    @property
    def context(self) -> Any:
        """The OpenCL context, None on NumPy."""
        return None if isinstance(self.queue, CPUQueue) else self.queue.context

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return layout.size_of(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes the elements take when contiguous."""
        return layout.size_of(self.shape) * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after the other in row-major order."""
        return layout.is_contiguous(self.shape, self.strides)

    @property
    def array(self) -> np.ndarray:
        """On NumPy, the elements as an ndarray view (no copy)."""
        if 0 in self.shape:  # an offset past the end of nothing is no error of the user's
            return np.empty(self.shape, self.dtype)
        size = self.dtype.itemsize
        if layout.is_contiguous(self.shape, self.strides):
            return np.ndarray(self.shape, self.dtype, self.buffer, self.offset * size)
        return np.ndarray(
            self.shape, self.dtype, self.buffer, self.offset * size, tuple(s * size for s in self.strides)
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len: expected a tensor with at least one axis, got a scalar of shape ().")
        return self.shape[0]

    # -- to the host ---------------------------------------------------------------------------------------------

    def to_host(self) -> np.ndarray:
        """The elements as a new NumPy array. Waits for the queue; raises IndexOutOfRange for a bad index met before."""
        if isinstance(self.queue, CPUQueue):
            self._tell("read", None)
            found = host_memory.empty("to_host", self.shape, self.dtype)
            found[...] = self.array
            return found
        with live.unrecorded():  # a replay reads nothing, so it needs no copy to read
            source = self.contiguous()
        out = host_memory.empty("to_host", self.shape, UINT8 if self.dtype == BOOL else self.dtype)
        opencl.read(self.queue, out, source.buffer, source.offset * self.dtype.itemsize)
        return out.view(BOOL) if self.dtype == BOOL else out

    numpy = to_host

    def item(self) -> Any:
        """The value of a tensor with one element, as a Python number. Waits for the queue."""
        if self.size != 1:
            raise ShapeError(f"item: expected a tensor with one element, got shape {self.shape}.")
        return self.to_host().reshape(-1)[0].item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            return self._seen(dtype)
        array = self.to_host()
        return array if dtype is None else array.astype(dtype)

    def _seen(self, dtype: Any) -> np.ndarray:
        """The elements without a copy, to be read only, since writes through it would not count."""
        if not isinstance(self.queue, CPUQueue) or (dtype is not None and np.dtype(dtype) != self.dtype):
            raise ValueError(
                "__array__: expected copy=None or True: values reach the host, and another dtype, by a copy."
            )
        self._tell("read", None)
        view = self.array.view()
        view.flags.writeable = False
        return view

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(f"bool: expected a tensor with one element, got shape {self.shape}; use any() or all().")
        return bool(self.item())

    def __repr__(self) -> str:
        values = np.array2string(self.to_host(), threshold=100, precision=4, separator=", ", prefix="Tensor(")
        return f"Tensor({values}, shape={self.shape}, dtype={self.dtype}, device={_device_name(self.queue)!r})"

    # -- views ---------------------------------------------------------------------------------------------------

    def _view(self, shape: Shape, strides: Shape, offset: int | None = None) -> Tensor:
        at = self.offset if offset is None else offset
        return Tensor(self.buffer, shape, strides, at, self.dtype, self.queue)

    def reshape(self, *shape: Any) -> Tensor:
        """The elements in row-major order as `shape` (one length may be -1); copies only when strides demand it."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)) else shape
        target, strides = layout.reshaped(self.shape, self.strides, tuple(wanted))
        if target == self.shape:
            return self
        if strides is None:
            return self.contiguous()._view(target, layout.contiguous_strides(target), 0)
        return self._view(target, strides)

    def flatten(
        self, start_axis: int = 0, end_axis: int = -1, *, start_dim: int | None = None, end_dim: int | None = None
    ) -> Tensor:
        """Axes from `start_axis` to `end_axis` merged into one."""
        start, end = axis_of("flatten", start_axis, 0, start_dim), axis_of("flatten", end_axis, -1, end_dim)
        return self.reshape(*layout.flattened(self.shape, start, end))

    def permute(self, *axes: Any) -> Tensor:
        """The axes in the given order, as NumPy's transpose(axes); without arguments they are reversed."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], (int, np.integer)) else axes
        return self._view(*layout.permuted(self.shape, self.strides, tuple(order)))

    def transpose(self, *axes: Any) -> Tensor:
        """Two axes exchanged when two are given for a tensor of any rank; else the same as `permute`."""
        if len(axes) == 2 and self.ndim != 2:
            order = list(range(self.ndim))
            i, j = (layout.as_axis("transpose", a, self.ndim) for a in axes)
            order[i], order[j] = order[j], order[i]
            return self.permute(*order)
        if len(axes) == 2:
            i, j = (layout.as_axis("transpose", a, 2) for a in axes)
            return self if i == j else self.permute(1, 0)
        return self.permute(*axes)

    @property
    def T(self) -> Tensor:
        """All axes reversed."""
        return self.permute()

    def expand(self, *shape: Any) -> Tensor:
        """Axes of length one repeated to `shape` without a copy; -1 keeps a length."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)) else shape
        lengths = tuple([as_int("expand", n) for n in wanted])
        return self._view(*layout.expanded(self.shape, self.strides, lengths))

    def squeeze(self, axis: Any = None, *, dim: Any = None) -> Tensor:
        """Without the axes of length one (all of them, or those named; a named axis must have length one)."""
        axis = axis_of("squeeze", axis, None, dim)
        kept = layout.squeezed(self.shape, axis)
        return self._view(tuple(self.shape[i] for i in kept), tuple(self.strides[i] for i in kept))

    def unsqueeze(self, axis: int | None = None, *, dim: int | None = None) -> Tensor:
        """With a new axis of length one before `axis`."""
        axis = layout.as_axis("unsqueeze", needed_axis("unsqueeze", axis, dim), self.ndim + 1)
        return self._view((*self.shape[:axis], 1, *self.shape[axis:]), (*self.strides[:axis], 0, *self.strides[axis:]))

    def part(self, key: Any) -> Tensor:
        """The view at a key of integers, slices, None and Ellipsis."""
        """Basic indexing, without a copy: integers, slices with any step, None and '...'."""
        return self._view(*layout.select("indexing", self.shape, self.strides, self.offset, key))

    def __getitem__(self, key: Any) -> Tensor:
        return self.part(key) if is_basic(key) else INDEXING["get"](self, key)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    # -- copies --------------------------------------------------------------------------------------------------

    def contiguous(self) -> Tensor:
        """Itself when contiguous, else a contiguous copy."""
        if layout.is_contiguous(self.shape, self.strides):
            return self
        made: Tensor = OPERATIONS["contiguous"](self)
        return made

    def copy(self) -> Tensor:
        """A contiguous copy with memory of its own."""
        made: Tensor = OPERATIONS["copy"](self)
        return made

    def __copy__(self) -> Tensor:
        """Another view of the same memory."""
        return self._view(self.shape, self.strides)

    def __reduce__(self) -> Any:
        """For pickles to other processes: the values by way of the host, and the name of the device."""
        return _restored, (transferable(self.to_host()), self.dtype.name, place_of(self.queue))

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """As `copy`, on the same queue."""
        twin = memo[id(self)] = self.copy()
        return twin

    def astype(self, dtype: Any) -> Tensor:
        """The values as `dtype`; itself when it already is. Floats go to integers by truncation, as in NumPy."""
        target = as_dtype(dtype)
        return self if target == self.dtype else OPERATIONS["cast"](self, target)

    def to(self, target: Any) -> Tensor:
        """On another device (a queue, a handle, a device's name, None for the default one), or as another dtype."""
        queue, dtype = destination("to", target)
        if dtype is not None:
            return self.astype(dtype)
        return self if queue is self.queue else Tensor.from_host(queue, self.to_host())

    to_queue = to

    # -- methods and operators that are ops (core/methods.py) ----------------------------------------------------

    _operations = OPERATIONS
    _several = OPERATIONS

    def _target(self, where: str) -> Tensor:
        return self

    def _refuse(self, name: str, other: Any) -> Any:
        """Leave it to Python. Host arrays are refused by name: a hidden transfer in a loop would cost dearly."""
        if isinstance(other, np.ndarray):
            raise DTypeError(
                f"{name}: expected a tensor or a number, got a NumPy array; use Tensor.from_host(queue, array)."
            )
        return NotImplemented


Tensor._operands = (Tensor, int, float, bool, np.number, np.bool_, BFLOAT16.type)


def _restored(array: np.ndarray, dtype: str, place: Place) -> Tensor:
    """A tensor that came from another process."""
    return Tensor.from_host(queue_at(place), array.view(as_dtype(dtype)))


def _allocate(queue: Queue, shape: Shape, dtype: DType) -> Tensor:
    """An uninitialised tensor; arguments are trusted."""
    size, strides = layout.extent(shape)
    if isinstance(queue, CPUQueue):
        buffer = host_memory.empty("Tensor", size, dtype)
    else:
        state = getattr(queue, "netcl_state", None) or state_of(queue)
        buffer = (state.pool or pool_of(queue)).buffer(size * dtype.itemsize)
    return Tensor(buffer, shape, strides, 0, dtype, queue)


allocate = _allocate  # the ops' own door: shape and dtype already checked


def destination(where: str, target: Any) -> tuple[Any, DType | None]:
    """What `.to(target)` means: (queue, None) for a device in any form, or (None, dtype)."""
    if not isinstance(target, (str, type, np.dtype)) or (isinstance(target, str) and names_device(target)):
        return queue_of(where, target), None
    try:
        return None, as_dtype(target)
    except DTypeError as error:
        raise DTypeError(f"{where}: expected a dtype or a device, got {target!r} ({error})") from None


def storable(dtype: DType, queue: Queue) -> DType:
    """`dtype`, or what the device can hold in its place (see dtypes.on_device)."""
    if dtype != FLOAT64 or isinstance(queue, CPUQueue):
        return dtype
    profile = state_of(queue).profile
    if profile is not None:
        return on_device(dtype, profile.has_fp64, profile.name)
    device = queue.device
    return on_device(dtype, bool(device.double_fp_config), device.name.strip())


def _check_backend(queue: Queue, backend: str | None) -> None:
    actual = "cpu" if isinstance(queue, CPUQueue) else "cl"
    if backend is not None and backend != actual:
        raise DeviceError(
            f"Tensor.from_host: expected a queue of the {backend!r} backend, got one of {actual!r}; "
            f"ask manager.default(...) for the device you mean."
        )


def _device_name(queue: Queue) -> str:
    return "numpy" if isinstance(queue, CPUQueue) else queue.device.name.strip()


def same_queue(where: str, *tensors: Tensor) -> Any:
    """The queue all tensors are on. Raises DeviceError when they are on different ones, TypeError for non-tensors."""
    queue = None
    for t in tensors:
        if not isinstance(t, Tensor):
            raise DTypeError(f"{where}: expected tensors, got {type(t).__name__}; make one with Tensor.from_host.")
        if queue is None:
            queue = t.queue
        elif t.queue is not queue and t.queue != queue:
            raise DeviceError(
                f"{where}: expected operands on one queue, got {_device_name(queue)} and {_device_name(t.queue)} "
                "(or two queues of one device); copy one with .to(queue)."
            )
    return queue


def reshape(tensor: Tensor, shape: Any) -> Tensor:
    """`tensor.reshape(shape)` as a function."""
    return tensor.reshape(shape)
