"""Pravega as a sink, over its own protocols: what is asked of the controller, and what goes to the segment stores."""
