"""Selectors: the conditions with which a subscription filters values. Pure, compiled with the core."""
