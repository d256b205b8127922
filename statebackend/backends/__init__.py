"""The places where rows rest: RocksDB or memory, the files that rows come in, and the layers above."""
