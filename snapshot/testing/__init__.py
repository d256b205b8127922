"""Kits for testing protocols: a simulated network, checkers, diagrams and conformance tests."""
