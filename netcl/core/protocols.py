"""The types that everybody passes: command queues, launches of kernels, and the values that ops take and give."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from netcl.core.dtypes import DType
from netcl.core.layout import Shape

Result = TypeVar("Result", covariant=True)


class Queue(Protocol):
    """A command queue: pyopencl's, or `CPUQueue`, whose `device` and `context` are None.

    Functions for users take whatever names a queue (see `netcl.core.device.discovery.queue_of`) and type it as Any.
    """

    @property
    def device(self) -> Any:
        """The device that it sends to."""

    @property
    def context(self) -> Any:
        """The context that its memory belongs to."""

    @property
    def int_ptr(self) -> int:
        """The driver's address of it."""

    @property
    def netcl_state(self) -> Any:
        """Its `netcl.core.queue.QueueState`; absent until `state_of` has met the queue."""

    def finish(self) -> Any:
        """Wait for all that was sent."""

    def flush(self) -> Any:
        """Send what is held back."""


class Launch(Protocol[Result]):
    """A planned launch: takes tensors and what else changes, enqueues kernels and gives the new tensors."""

    def __call__(self, *args: Any, **named: Any) -> Result:
        """Enqueue; never waits."""


class Value(Protocol):
    """What ops take and give: a Tensor, a Node on the tape, or what stands for either while a function is traced."""

    @property
    def shape(self) -> Shape:
        """Length of each axis."""

    @property
    def dtype(self) -> DType:
        """Type of an element."""

    @property
    def ndim(self) -> int:
        """Number of axes."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def queue(self) -> Queue:
        """Where its work is sent."""
