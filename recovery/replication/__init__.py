"""Replicas of partitions, as the driver sees them; no I/O."""
