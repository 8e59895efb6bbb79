"""Raw pyopencl calls seen by a recording: `kernel(queue, ...)`, `cl.enqueue_nd_range_kernel`, copies and fills.

The functions are replaced between `install` and `remove` only. netcl's own calls, which report through the hooks of
`core.backend.opencl`, pass through untouched. Names that a module imported before (`from pyopencl import enqueue_copy`)
cannot be seen.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np

from netcl.core.backend import opencl

with contextlib.suppress(ImportError):  # without pyopencl there is nothing to intercept
    import pyopencl as cl


def _from_netcl() -> bool:
    """Whether the intercepted function was called by `core.backend.opencl`."""
    return sys._getframe(2).f_globals is vars(opencl)


class RawCalls:
    """Replaces pyopencl's enqueue functions by ones that also tell `sink` (see capture.Recording) what was done."""

    def __init__(self, sink: Any) -> None:
        self.sink = sink
        self.saved: list[tuple[Any, str, Any]] = []
        self.arguments: dict[int, dict[int, Any]] = {}  # by kernel, what was set since the recording began

    def install(self) -> None:
        """Start to intercept."""
        if "cl" not in globals():
            return
        methods = {"__call__": self._call, "set_args": self._set_args, "set_arg": self._set_arg}
        functions = {"nd_range_kernel": self._range, "copy": self._copy, "fill_buffer": self._fill}
        functions |= {"map_buffer": self._map}
        for owner, wrappers in ((cl.Kernel, methods), (cl, {f"enqueue_{n}": f for n, f in functions.items()})):
            for name, wrapper in wrappers.items():
                original = getattr(owner, name)
                self.saved.append((owner, name, original))
                setattr(owner, name, wrapper(original))

    def remove(self) -> None:
        """Put the original functions back."""
        while self.saved:
            owner, name, original = self.saved.pop()
            setattr(owner, name, original)
        self.arguments.clear()

    def set_arg(self, kernel: Any, index: int, value: Any) -> None:
        """The original `kernel.set_arg`."""
        next(f for owner, name, f in self.saved if owner is cl.Kernel and name == "set_arg")(kernel, index, value)

    # -- kernels ---------------------------------------------------------------------------------------------------

    def _call(self, original: Any) -> Any:
        def call(kernel: Any, queue: Any, global_size: Any, local_size: Any, *args: Any, **kwargs: Any) -> Any:
            event = original(kernel, queue, global_size, local_size, *args, **kwargs)
            if self.sink.listening():
                self._kernel(kernel, queue, (global_size, local_size), args, **kwargs)
            return event

        return call

    def _set_args(self, original: Any) -> Any:
        def set_args(kernel: Any, *args: Any) -> None:
            original(kernel, *args)
            if not _from_netcl() and self.sink.listening():
                self.arguments[kernel.int_ptr] = dict(enumerate(args))

        return set_args

    def _set_arg(self, original: Any) -> Any:
        def set_arg(kernel: Any, index: int, value: Any) -> None:
            original(kernel, index, value)
            if self.sink.listening():
                self.arguments.setdefault(kernel.int_ptr, {})[index] = value

        return set_arg

    def _range(self, original: Any) -> Any:
        def enqueue(queue: Any, kernel: Any, global_work_size: Any, local_work_size: Any, *more: Any, **kw: Any) -> Any:
            event = original(queue, kernel, global_work_size, local_work_size, *more, **kw)
            if not _from_netcl() and self.sink.listening():
                known = self.arguments.get(kernel.int_ptr, {})
                if len(known) < kernel.num_args:
                    self.sink.refuse(
                        f"kernel {kernel.function_name} was enqueued with arguments set before begin(); set them "
                        "inside the recording, or call kernel(queue, global_size, local_size, *args)"
                    )
                names = ("global_offset", "wait_for", "g_times_l", "allow_empty_ndrange")
                options = {**dict(zip(names, more, strict=False)), **{k.replace("work_", ""): v for k, v in kw.items()}}
                args = tuple(known[i] for i in range(kernel.num_args))
                self._kernel(kernel, queue, (global_work_size, local_work_size), args, **options)
            return event

        return enqueue

    def _kernel(self, kernel: Any, queue: Any, sizes: tuple[Any, Any], args: tuple[Any, ...], **options: Any) -> None:
        """A launch of `sizes` (global, local); the options are pyopencl's."""
        name, (global_size, local_size) = kernel.function_name, sizes
        if options.get("wait_for"):
            self.sink.refuse(f"kernel {name} waits for events, which a replay cannot repeat")
        size = tuple(int(n) for n in global_size)
        local = None if local_size is None else tuple(int(n) for n in local_size)
        if options.get("g_times_l") and local is not None:
            size = tuple(g * n for g, n in zip(size, local, strict=False))
        if 0 in size:
            return
        start = tuple(int(n) for n in options.get("global_offset") or ())
        self.sink.raw_kernel(queue, self._own(kernel, name, args), (start, size, local), args)

    def _own(self, kernel: Any, name: str, args: tuple[Any, ...]) -> Any:
        """A kernel object with the same arguments that nothing else will change."""
        plain = (cl.MemoryObjectHolder, cl.LocalMemory, np.generic)
        if len(args) == kernel.num_args and all(isinstance(a, plain) for a in args):
            own = cl.Kernel(kernel.program, name)
            for i, a in enumerate(args):
                self.set_arg(own, i, a)
            return own
        try:
            return kernel.clone()  # numbers whose types only the kernel knows
        except (cl.Error, AttributeError) as error:
            self.sink.refuse(
                f"kernel {name} takes plain numbers and this driver cannot copy a kernel ({error}); pass NumPy scalars"
            )

    # -- copies ----------------------------------------------------------------------------------------------------

    def _copy(self, original: Any) -> Any:
        def enqueue_copy(queue: Any, dest: Any, src: Any, **kwargs: Any) -> Any:
            event = original(queue, dest, src, **kwargs)
            if not _from_netcl() and self.sink.listening():
                self._copied(queue, dest, src, **kwargs)
            return event

        return enqueue_copy

    def _copied(self, queue: Any, dest: Any, src: Any, *, byte_count: int | None = None, **options: Any) -> None:
        dst_offset, src_offset = options.pop("dst_offset", 0), options.pop("src_offset", 0)
        wait_for = options.pop("wait_for", None)
        options.pop("is_blocking", None)
        buffers = [isinstance(x, cl.MemoryObjectHolder) and not isinstance(x, cl.Image) for x in (dest, src)]
        if wait_for or options or not any(buffers) or isinstance(dest, cl.Image) or isinstance(src, cl.Image):
            what = "waits for events" if wait_for else "is not between plain buffers and arrays"
            self.sink.refuse(f"a copy that {what} cannot be replayed")
        if not buffers[0]:
            self.sink.read("a buffer (enqueue_copy to an array)")
            return
        if not buffers[1]:
            host = np.array(src)
            self.sink.copied("write", queue, dest, host, host.nbytes, (dst_offset,), None)
            return
        if byte_count is None or byte_count < 0:
            byte_count = min(src.size - src_offset, dest.size - dst_offset)
        self.sink.copied("copy", queue, dest, src, byte_count, (dst_offset, src_offset), None)

    def _fill(self, original: Any) -> Any:
        def fill(queue: Any, mem: Any, pattern: Any, offset: int, size: int, wait_for: Any = None) -> Any:
            event = original(queue, mem, pattern, offset, size, wait_for)
            if not _from_netcl() and self.sink.listening():
                self.sink.copied("fill", queue, mem, pattern, size, (offset,), None)
            return event

        return fill

    def _map(self, original: Any) -> Any:
        def enqueue_map_buffer(*args: Any, **kwargs: Any) -> Any:
            if self.sink.listening() and sys._getframe(1).f_globals.get("__name__") != "netcl.core.memory":
                self.sink.refuse("the host maps a buffer (enqueue_map_buffer)")
            return original(*args, **kwargs)

        return enqueue_map_buffer
