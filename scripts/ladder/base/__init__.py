"""What the modules share: messages, files, the programs and their steps, records of their JSON, the
course that all of it is about."""
