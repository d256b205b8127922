"""RocksDB databases of rows by key: the sink."""
