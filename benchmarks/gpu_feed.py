"""Steps that read a new batch of images each, a table of benchmarks/h200.py: what the batches cost beside the step.

The step takes about as long as gathering, and longer than copying, a batch. So one that is fed well takes no longer
than "kept", on a batch that lies on the device; the second case waits for gathering and copying in each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu_cases import Env, GpuCase, Pair

IMAGES, BATCH, PIXELS = 1024, 128, 3 * 224 * 224
PASSES, BUFFER = 6, 1 << 28  # passes of a step over so many floats: 2.1 GB each
WORKERS = 4


class Rows:
    """A dataset for PyTorch that gathers whole batches, as TensorDataset does for ours."""

    def __init__(self, torch: Any, array: np.ndarray) -> None:
        self.values = torch.from_numpy(array)

    def __len__(self) -> int:
        return len(self.values)

    def __getitems__(self, indices: list[int]) -> Any:
        return self.values[indices]


def _forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _as_it_is(batch: Any) -> Any:
    return batch


def fed(env: Env, how: str) -> Pair:
    """`how`: "kept" on the device, "in turn" with the step, or made "ahead" by workers."""
    from netcl.core.tensor import Tensor
    from netcl.data import DataLoader, TensorDataset
    from netcl.ops import elementwise, reduction

    torch, pixels = env.torch, np.random.default_rng(0).random((IMAGES, PIXELS), np.float32)
    ahead = how == "ahead"
    options: dict[str, Any] = {"num_workers": WORKERS, "prefetch": 1} if ahead else {}
    mine = _forever(DataLoader(TensorDataset(pixels), BATCH, shuffle=True, device_queue=env.queue, **options))
    options = {"num_workers": WORKERS, "pin_memory": True, "persistent_workers": True} if ahead else {}
    loader = torch.utils.data.DataLoader(Rows(torch, pixels), BATCH, shuffle=True, collate_fn=_as_it_is, **options)
    theirs = _forever(loader)
    here, there = Tensor.zeros(env.queue, (BUFFER,)), torch.zeros(BUFFER, device="cuda")
    if how == "kept":
        ours_kept, theirs_kept = next(mine), next(theirs).cuda()

    def ours() -> Any:
        x = ours_kept if how == "kept" else next(mine)
        for _ in range(PASSES):
            elementwise.relu(here)
        return reduction.mean(x)

    def step() -> Any:
        x = theirs_kept if how == "kept" else next(theirs).to("cuda", non_blocking=True)
        for _ in range(PASSES):
            torch.relu(there)
        return x.mean()

    def errors() -> tuple[float, float]:
        """How far the mean of all batches of an epoch is from that of the data."""
        found = [[f().item() for _ in range(IMAGES // BATCH)] for f in (ours, step)]
        wanted = float(pixels.mean(dtype=np.float64))
        return tuple(abs(np.mean(f) / wanted - 1) if how != "kept" else 0.0 for f in found)  # type: ignore[return-value]

    return Pair(ours, step, errors, bytes=4.0 * BATCH * PIXELS)


CASES = tuple(
    GpuCase(f"a step and 77 MB of images, {how}", partial(fed, how=how)) for how in ("kept", "in turn", "ahead")
)
