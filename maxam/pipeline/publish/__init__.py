"""Publish rows of tables to a gateway."""
