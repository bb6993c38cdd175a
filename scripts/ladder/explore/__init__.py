"""The explorer: shows the simulator's traces on a page."""
