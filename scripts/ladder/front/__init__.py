"""The commands that a reader begins with: scripts/run and its table, scripts/test, one step
alone in a file; what they need of the machine is in ready.sh."""
