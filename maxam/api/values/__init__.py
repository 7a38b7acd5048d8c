"""Values of topics over HTTP, for every client within its rights to receive."""
