"""Replicas of a partition: the order in which all take their input, and how they agree; no I/O."""
