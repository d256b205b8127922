"""The decisions at a job's start, failure and clean-up: pure functions of what was found."""
