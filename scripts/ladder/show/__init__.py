"""Draws the figures and writes the Markdown tables from the result files."""
