"""One journal on several machines: entries, the link between gateways, the feed, copying and following."""
