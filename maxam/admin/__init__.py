"""The operators' HTTP API and the `maxam-admin` command."""
