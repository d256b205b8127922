"""Faults that tests and people bring about in a partition's process."""
