"""Data that comes with the package."""

from __future__ import annotations

from importlib import resources

import numpy as np

from netcl.data.dataset import TensorDataset
from netcl.data.sampler import order_of

_SHARE = 5  # one sample in so many of each class is for testing


def digits(split: str = "train") -> TensorDataset:
    """Handwritten digits: images (N, 1, 8, 8) float32 in [0, 1] and labels (N,) int32 in [0, 10).

    `split`: "train" (1,433 images), "test" (364, every fifth of each class after a fixed shuffle), or "all" (1,797).

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
    1998, doi:10.24432/C50P49, licensed CC BY 4.0; the part of it that scikit-learn distributes. Pixels were counts from
    0 to 16.
    """
    if split not in ("train", "test", "all"):
        raise ValueError(f"digits: expected split 'train', 'test' or 'all', got {split!r}.")
    with resources.files("netcl.data").joinpath("digits.npz").open("rb") as file, np.load(file) as stored:
        images = stored["images"].astype(np.float32).reshape(-1, 1, 8, 8) / np.float32(16)
        labels = stored["labels"].astype(np.int32)
    if split == "all":
        return TensorDataset(images, labels)
    test = np.zeros(len(labels), bool)
    for digit in range(10):
        indices = np.flatnonzero(labels == digit)
        test[indices[order_of(len(indices), True, seed=1998, epoch=digit)[::_SHARE]]] = True
    chosen = test if split == "test" else ~test
    return TensorDataset(images[chosen], labels[chosen])
