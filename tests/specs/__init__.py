"""Specifications in TLA+ of the protocols, and the histories of their machines that TLC checks against them."""
