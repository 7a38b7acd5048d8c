"""`python -m maxam.bridge`."""

from maxam.bridge.main import bridge

bridge()
