"""The explorer: the sim's traces as a page."""
