"""Conformance kits for what the state backend is built on."""
