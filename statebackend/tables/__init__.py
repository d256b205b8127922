"""Columnar tables of aggregates: keys to slots, accumulators, and the blocks that they are stored as."""
