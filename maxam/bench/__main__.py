"""`python -m maxam.bench`."""

from maxam.bench.main import main

main()
