"""Bounded validation of Avro bodies against a folder of schemas."""
