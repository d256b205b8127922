"""How much is worked on at once, and how much may be under way; no I/O."""
