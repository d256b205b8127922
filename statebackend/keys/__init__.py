"""Keys: their declared types, canonical bytes and stable hash, one by one and by Arrow columns."""
