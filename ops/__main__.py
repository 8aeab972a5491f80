"""`python -m ops` is the command `atoll`."""

from ops.cli import main

if __name__ == "__main__":
    main()
