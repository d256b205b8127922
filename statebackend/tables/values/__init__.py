"""The values that a table keeps of each key: aggregations, their columns, and how rows are folded into them."""
