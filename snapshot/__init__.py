"""The cut: frames, marker rules, coordinator, journal and two-phase commit, as machines without I/O."""
