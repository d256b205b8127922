"""The keys of a table that memory has no room for, on the local disk."""
