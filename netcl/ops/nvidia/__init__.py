"""NVIDIA's matrix units from OpenCL C, by inline PTX."""
