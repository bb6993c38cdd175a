"""Draws the figures and writes the Markdown tables from the files of scripts/figures measure."""
