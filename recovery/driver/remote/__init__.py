"""What a running job is asked for from outside, and its answers."""
