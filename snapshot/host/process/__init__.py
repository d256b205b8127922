"""The process that runs partitions: how it starts, lives, stands by and takes a role."""
