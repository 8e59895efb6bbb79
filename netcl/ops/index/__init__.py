"""Lookups, scatters, sorts and running sums."""
