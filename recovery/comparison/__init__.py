"""Comparing recovery schemes: the same program under each of them, with the same faults, measured alike, and a report.

Invariant: what is judged follows from the rows that were seen and from when they were seen; a run that went wrong is
shown as such and counts for no figure.
"""
