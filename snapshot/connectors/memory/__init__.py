"""Rows made or kept in memory: collections, generators, and targets in this process."""
