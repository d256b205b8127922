"""HTTP servers: the sink."""
