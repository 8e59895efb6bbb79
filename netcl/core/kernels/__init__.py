"""The table of elementwise primitives and the dialect its formulas are written in."""
