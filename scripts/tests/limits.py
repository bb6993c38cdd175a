"""How long a test waits for what it has started."""

# A limit is for what hangs. A machine may be under load, or be slow: so minutes.
SECONDS = 600
