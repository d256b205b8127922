"""The blocks that a table is stored as."""
