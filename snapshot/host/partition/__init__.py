"""One partition at work: its stages, operators, sources and sinks, and the files that it writes."""
