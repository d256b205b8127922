"""Programs for simulations: small, of the public API alone, and each with the results that any execution may give."""
