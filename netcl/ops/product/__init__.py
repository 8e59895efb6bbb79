"""Matrix products: NumPy, CPU devices, GPUs, and what they share."""
