"""Everything the broker accepted and rejected, as tables on Spark: read the journal, run jobs over it, publish back."""
