"""Backward rules of the operations that are not rows of the primitive table, by subject. Importing a module registers them."""
