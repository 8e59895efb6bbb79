"""Attention, one file a family of kernels."""
