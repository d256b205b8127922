"""The messages between the driver and the processes, and the options of a process."""
