"""Devices, buffers, tensors, dtypes, errors, `launch`, the table of primitives. Imports nothing above it."""
