"""Limits on the rows that are worked on at once, and on those that are under way; no I/O."""
