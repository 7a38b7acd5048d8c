"""The commands of `maxam-admin`, one module per group."""
