"""The states that a program declares and uses key by key, and how they are declared in files."""
