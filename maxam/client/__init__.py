"""A small trio STOMP client for maxam."""
