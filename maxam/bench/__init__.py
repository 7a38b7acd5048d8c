"""Load and latency measurement over mutual TLS."""
