"""Tests against real servers, and the fixtures that start them; `conftest.py` marks all of them `servers`."""
