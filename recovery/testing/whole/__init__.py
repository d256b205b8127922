"""A whole job in the simulated world: its shape, its drivers and processes, and the faults that befall it."""
