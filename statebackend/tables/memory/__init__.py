"""The keys of a table in memory: slots, accumulators, and what a cut has frozen of them."""
