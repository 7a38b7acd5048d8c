"""Certificates: a local certificate authority and a client of EST (RFC 7030)."""
