"""Epochs and savepoints from outside, without a driver: read, copied, rescaled, edited, cleaned up.

Invariant: no epoch is ever changed; what is made is a new epoch in its job's tree or a tree of its own, which
is there as a whole or not at all.
"""
