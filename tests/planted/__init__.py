"""Errors that are planted in the product one at a time, each of which the search must find."""
