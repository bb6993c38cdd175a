"""The code that all other modules share: messages, files, the programs and their steps, the records
that programs print as JSON, and the data that figures and tables need about the course."""
