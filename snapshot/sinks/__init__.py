"""Where rows go: sinks whose output becomes visible epoch by epoch, in two phases."""
