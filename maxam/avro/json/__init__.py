"""Avro values as JSON and back: one decoder, one encoder."""
