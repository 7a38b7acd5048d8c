"""Certification of client libraries: a real broker in memory, faults on its connections, and a verdict for each promise."""
