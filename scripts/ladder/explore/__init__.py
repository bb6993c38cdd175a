"""The explorer, which shows the simulator's traces on an HTML page."""
