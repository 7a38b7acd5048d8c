"""The output of every command: escaping and tables."""
