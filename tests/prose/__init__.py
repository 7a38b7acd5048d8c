"""A linter of prose: `python -m tests.prose [FILES]` checks documents, docstrings, comments and messages."""
