"""Stream programs as plain data: what a user writes, what is wrong with it, and the stages that it runs as."""
