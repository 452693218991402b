"""`python -m neocpu` is the command `neocpu`."""

import sys

from neocpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
