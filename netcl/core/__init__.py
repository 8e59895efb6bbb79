"""Devices, buffers, tensors, dtypes, errors, `launch`, and the table of primitives. Imports nothing of netcl above it."""
