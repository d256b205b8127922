"""The `recovery` command: what is done with jobs from a terminal, one module for each verb.

Invariant: a verb does nothing but read its arguments, call what is public in Python as well, and print what
came of it; what goes wrong is one plain sentence on the standard error, and an exit code that `exits` lists.
"""
