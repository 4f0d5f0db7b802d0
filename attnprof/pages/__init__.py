"""A run with its figures -> one page of HTML that needs nothing else."""
