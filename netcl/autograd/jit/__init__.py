"""Tracing, planning, fused programs, recorded steps."""
