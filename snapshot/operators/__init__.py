"""What the steps of a program do in one partition: rows in, rows out, state in between."""
