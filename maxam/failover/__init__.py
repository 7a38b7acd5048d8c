"""Clients whose gateway is killed, and what that did to them: for `maxam-bench` and the demo of a cluster."""
