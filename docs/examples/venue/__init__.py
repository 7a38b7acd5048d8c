"""An example for the pipeline: totals of venues from the meters of their machines. See README.md."""
