"""Programs whose exact output is known, and processes that run them and can be killed."""
