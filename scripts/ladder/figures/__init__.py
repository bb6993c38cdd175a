"""The figures, and the tables in markdown, from what scripts/bench.py wrote."""
