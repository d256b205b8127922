"""Recovery schemes: what is done when a process dies."""
