"""Sans-IO STOMP 1.1 and 1.2: every wire string and every difference between the versions ends here."""
