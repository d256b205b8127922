"""Simulated processes with threads, clocks and a network, for code that takes these from `statebackend.means`."""
