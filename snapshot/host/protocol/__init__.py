"""What the driver and the processes say to each other, and the options of a process."""
