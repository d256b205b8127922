"""The process that runs partitions of a program: channels, the event loop, and the cores of the cut wired to them."""
