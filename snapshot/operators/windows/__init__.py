"""Operators over windows of event time, and the windows that a program can declare."""
