"""A model's shape from a profile, a configuration file, the header of its weights, or the hub."""

from attnprof.models.load import load_model
from attnprof.models.spec import ModelSpec

__all__ = ["ModelSpec", "load_model"]
