"""Kafka: the source, the sink, and their clients."""
