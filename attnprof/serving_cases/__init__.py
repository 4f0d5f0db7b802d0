"""Serving cases: what real engines logged, held against what is predicted here."""
