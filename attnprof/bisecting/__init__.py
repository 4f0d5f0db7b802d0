"""Two commits and a workload that got worse between them -> the commit that did it."""
