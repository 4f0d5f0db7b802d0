"""Other people's measurements -> records of a run directory, their source and licence kept."""
