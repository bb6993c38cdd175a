"""The explorer: Python prepares the simulator's traces, and JavaScript in web plays them."""
