"""Enrolment in the gateway: one-time tokens, certificates and the policy file of enrolled principals."""
