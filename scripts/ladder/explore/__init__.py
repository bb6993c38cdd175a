"""The explorer: the simulator's traces as a page."""
