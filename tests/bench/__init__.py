"""The project's benchmarks: one module per workload, each a generator of figures.

Invariant: a figure that is compared over time keeps its name and what it measures.
"""
