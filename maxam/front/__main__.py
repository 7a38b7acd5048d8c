"""`python -m maxam.front LINK SOCKETS`: a gateway starts it."""

import sys

from maxam.front.process import main

sys.exit(main())
