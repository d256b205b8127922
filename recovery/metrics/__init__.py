"""A job's metrics for Prometheus, and for other systems that read what it reads."""
