"""`make races`: kernels for GPUs under Oclgrind, an interpreter of OpenCL devices that watches every access.

It sees what no CPU driver shows and a GPU answers with a lost context or wrong numbers now and then: accesses out of
bounds or not aligned, data races between work-items, barriers that some of them miss. Run as a program this starts
pytest under it, with itself as a plugin: a test during which Oclgrind says something fails, with what was said. Buffers
are as large as asked for and come filled with NaN (integers: -1), so that what nobody wrote shows in results.

    python tools/races.py                                        some minutes: most kernels for GPUs at small sizes
    python tools/races.py tests/ops/test_norm.py -k "rms"        other tests; takes pytest's arguments
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOG = "NETCL_OCLGRIND_LOG"
MOST = 10000  # messages of one run: a race at every element of a kernel writes gigabytes
LOCAL = 1 << 17  # bytes; Oclgrind adds up the local memory of all kernels in a program
ABSENT = """make races needs Oclgrind, which is not installed (Debian and Ubuntu: apt-get install oclgrind; else see
https://github.com/jrprice/Oclgrind). It interprets kernels on any machine; no GPU is needed."""
# The kernels for GPUs at small sizes: every op with its gradients, fused folds, training patterns, updates, transforms.
# Left out: all that once more through views, threads (Oclgrind takes one), and what takes as long as the rest together.
FILES = (
    "autograd/test_rules.py", "autograd/test_compiler_folds.py", "autograd/test_training_compiler.py",
    "ops/test_multi_tensor.py", "ops/test_conv_winograd.py",
)  # fmt: skip
WANTED = "test_rules or folds or training_compiler or (small and groups) or smallest"
SKIPPED = ("view", "thread", "long", "batches", "with_groups", "bfloat16")
CHOSEN = [*(f"tests/{name}" for name in FILES), "-k", f"Oclgrind and ({WANTED}) and not ({' or '.join(SKIPPED)})"]


def main(arguments: list[str]) -> int:
    """Run pytest with `arguments`, by default the chosen tests; its exit status."""
    if shutil.which("oclgrind") is None:
        print(ABSENT, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder, "log"))
        options = ["--data-races", "--max-errors", str(MOST), "--local-mem-size", str(LOCAL), "--log", log]
        pytest = [sys.executable, "-m", "pytest", "-p", "tools.races", *(arguments or CHOSEN)]
        return subprocess.run(["oclgrind", *options, *pytest], env={**os.environ, LOG: log}).returncode


# -- the plugin --------------------------------------------------------------------------------------------------------


def said(start: int = 0) -> str:
    """What Oclgrind wrote from byte `start` of its log on."""
    try:
        return Path(os.environ[LOG]).read_bytes()[start:].decode(errors="replace")
    except FileNotFoundError:
        return ""


def prepare() -> None:
    """Make pools give out blocks that end where what was asked for ends, filled with bits that are no number."""
    import numpy as np
    import pyopencl as cl

    from netcl.core import memory

    give, fill, nothing = memory.BufferPool.buffer, cl.enqueue_fill_buffer, np.uint8(255)

    def buffer(self: memory.BufferPool, nbytes: int) -> Any:
        block = give(self, nbytes)
        if type(self) is memory.BufferPool and self.queue is not None:  # a recording's pools count on their own
            fill(self.queue, block, nothing, 0, block.size)
        return block

    exact = functools.partial(memory.MemoryPool, leading_bits_in_bin_id=21)  # below 4 MiB
    memory.MemoryPool, memory.BufferPool.buffer = exact, buffer  # type: ignore[misc, method-assign]


if LOG in os.environ:
    import pytest

    prepare()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
        """Fail what Oclgrind complained about."""
        from netcl.core.device import manager

        start = len(said().encode())
        try:
            return (yield)
        finally:
            manager.default(0).queue.finish()
            if text := said(start):
                pytest.fail(f"Oclgrind:\n{text[:5000]}", pytrace=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(fixturedef: Any) -> None:
        """Leave out the guards behind buffers (tests/ops/conftest.py): here, what lies behind must not even be read."""
        if fixturedef.argname == "canary":
            fixturedef.func = lambda **_: None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
