"""Delta tables: the sink."""
