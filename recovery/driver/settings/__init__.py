"""What is fixed while a driver runs a job: its options, and whether its program fits."""
