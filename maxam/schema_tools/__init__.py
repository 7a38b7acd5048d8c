"""Tools for a schema folder: check, edit, compare, plan and try."""
