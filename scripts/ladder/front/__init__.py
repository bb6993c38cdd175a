"""The commands that a reader starts with: scripts/run, with its table and --alone, and
scripts/test. ready.sh installs the tools that they need, or says what to install."""
