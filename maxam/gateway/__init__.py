"""The trio service: TLS, tasks, the committer, signals."""
