"""The steps of a program in one partition: rows in, rows out, state in between."""
