"""Bytes that nobody meant, for every decoder of what comes from the network, a tree or a terminal."""
