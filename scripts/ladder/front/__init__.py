"""The commands that a reader begins with: scripts/run with its table and --alone, and scripts/test.
ready.sh installs or names what they need."""
