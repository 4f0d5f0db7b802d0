"""Measured latencies -> laws of a few physical coefficients -> latencies of shapes not measured."""
