"""Plain data -> figures: records of a run, documents of estimates, comparisons and histories.

Only here is matplotlib imported, and only when a figure is written.
"""
