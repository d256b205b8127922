"""Keyed state and where it lives: identifiers, key groups, file sets and the blob store."""
