"""The code behind the commands in scripts. scripts/README.md says which folder does what."""
