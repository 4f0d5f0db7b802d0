"""Measures attention on the hardware in front of it and plans LLM serving on hardware to come."""

__all__ = ["__version__"]

__version__ = "0.1.0"
