"""Reads the files that --trace writes, for all other modules."""
