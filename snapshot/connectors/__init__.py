"""Sources and sinks, a folder for each system, and what sinks have in common."""
