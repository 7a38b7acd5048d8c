"""Live views: streams of the topics in a window."""
