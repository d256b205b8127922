"""Where rows come from: splits that can be read again from any position."""
