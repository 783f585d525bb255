"""`python -m rayprivacy.cli`."""

import sys

from rayprivacy.cli import main

if __name__ == "__main__":
    sys.exit(main())
