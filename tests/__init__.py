"""All tests; the folders say what they need: nothing, a clock, a process, a network."""
