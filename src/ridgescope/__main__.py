"""`python -m ridgescope` is `ridgescope`."""

from .cli import main

if __name__ == "__main__":
    main()
