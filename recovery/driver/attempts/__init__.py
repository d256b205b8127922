"""Attempts: where partitions are placed, which processes there are, and how an attempt ends."""
