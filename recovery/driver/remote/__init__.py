"""The commands to a running job from outside, and their answers."""
