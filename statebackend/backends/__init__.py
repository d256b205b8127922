"""Where rows rest, in RocksDB or in memory, the files that they come in, and the layers above."""
