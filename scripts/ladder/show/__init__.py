"""The figures, and the tables in markdown, from what scripts/figures measure wrote."""
