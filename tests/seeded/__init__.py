"""Protocol errors that are switched on one at a time, each of which the search must find."""
