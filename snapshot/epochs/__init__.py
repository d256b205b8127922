"""The life of epochs and of their output: coordinator and two-phase commit as machines; no I/O."""
