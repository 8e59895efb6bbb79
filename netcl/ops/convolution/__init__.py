"""Convolutions and their gradients, one file an algorithm."""
