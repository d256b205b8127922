"""Tests against real servers, and the fixtures that start them; all are marked `servers`."""
