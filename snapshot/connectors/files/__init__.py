"""Files, local and remote: the source, the sink, and the folders in which files appear."""
