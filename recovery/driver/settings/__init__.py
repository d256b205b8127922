"""The settings that are fixed while a driver runs a job, and whether its program fits."""
