"""The generator: chains of formulas become kernels that map, fold or walk rows."""
