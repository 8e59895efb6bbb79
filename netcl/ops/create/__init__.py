"""Tensors from nothing: ranges, fills, random numbers."""

from netcl.ops.create.factories import arange, eye, linspace, meshgrid, tril, triu

__all__ = ["arange", "eye", "linspace", "meshgrid", "tril", "triu"]
