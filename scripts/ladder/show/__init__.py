"""Draws the figures and writes the Markdown tables from the result files. gallery.py lists them."""
