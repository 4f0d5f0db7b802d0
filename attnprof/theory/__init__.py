"""FLOP, bytes and rooflines: arithmetic, nothing else."""
