"""The status of a run and its events, as people and programs see them."""
