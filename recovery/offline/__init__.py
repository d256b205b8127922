"""A job's tree without its driver: read, taken over, and made anew."""
