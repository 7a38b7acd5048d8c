"""Libraries that the conformance kit certifies, and broken ones that it must not."""
