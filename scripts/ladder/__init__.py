"""What the commands in scripts share: a module a concern."""
