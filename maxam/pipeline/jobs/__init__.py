"""The commands of `maxam-pipeline`, one module per job."""
