"""The tree of a job as values: its layout, the manifests of its epochs and their bytes; no I/O."""
