"""The tests of epochcut."""
