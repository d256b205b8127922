"""A whole job in simulation: the protocol cores as they are, on a simulated network, store and target."""
