"""Datasets, samplers and the loader; everything here stays on the host until a batch is sent."""

from netcl.data import datasets
from netcl.data.dataset import Dataset, Subset, TensorDataset, default_collate, random_split
from netcl.data.loader import DataLoader
from netcl.data.sampler import DistributedSampler

__all__ = [
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "Subset",
    "TensorDataset",
    "datasets",
    "default_collate",
    "random_split",
]
