"""`python -m maxam.front LINK SOCKETS`: a gateway starts it."""

import sys

from maxam.front.local import main

sys.exit(main())
