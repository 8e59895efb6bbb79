"""OpenCL C sources of the hand-written kernels; see netcl.ops.sources."""
