"""The `maxam-admin` command."""
