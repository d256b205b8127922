"""What is decided when a job starts, breaks or is cleaned up: pure functions of what was found."""
