"""Whole steps and start-up times."""

CASES = []
