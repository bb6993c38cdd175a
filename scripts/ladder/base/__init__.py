"""Code that all modules share: messages, files, the programs and their steps, records of their
JSON, and the tables of the course."""
