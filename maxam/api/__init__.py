"""The admin listener: JSON API, metrics, live streams and console over HTTPS."""
