"""Spark sessions, the data source `maxam` and the tables of a journal."""
