"""Times side by side: netcl against PyTorch or NumPy on the same machine, in the same run. `python -m benchmarks --help`."""
