"""The two ways to run: OpenCL (`opencl`) and NumPy (`cpu`)."""
