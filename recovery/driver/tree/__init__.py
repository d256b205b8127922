"""The job's tree in the driver's hands: identity, journal, manifests, and what is deleted."""
