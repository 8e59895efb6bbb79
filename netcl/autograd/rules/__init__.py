"""Backward rules of what is no row of the primitive table, by subject. Importing a module registers its rules."""
