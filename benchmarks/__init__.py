"""Times side by side: netcl against PyTorch or NumPy on one machine, in one run. See `python -m benchmarks --help`."""
