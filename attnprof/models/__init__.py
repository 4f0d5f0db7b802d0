"""A model's shape from a profile, a configuration file or the header of its weights."""
