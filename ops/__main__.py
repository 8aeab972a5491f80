"""`python -m ops` is the command `atoll`."""

from ops.cli import main

main()
