"""`python -m maxam.conformance` is `maxam-conformance`."""

from maxam.conformance.main import conformance

conformance()
