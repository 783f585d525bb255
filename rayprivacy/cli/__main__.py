"""`python -m rayprivacy.cli`."""

from rayprivacy.cli import main

if __name__ == "__main__":
    main()
