"""A venue to look at: simulated gaming machines, a live table and a slow reader."""
