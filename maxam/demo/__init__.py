"""A simulated venue: gaming machines, a live table and a slow reader."""
