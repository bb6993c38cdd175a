"""The code behind the commands in scripts, with one module per concern."""
