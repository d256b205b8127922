"""How a run stands and what happened in it, as people and programs see it."""
