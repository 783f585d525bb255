"""`python -m rayprivacy.cli`."""

from rayprivacy.cli import main

main()
