"""Two sets of records -> a verdict a workload, and one for the whole."""
