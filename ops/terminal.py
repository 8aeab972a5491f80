"""A console of rich that treats a closed pipe as every other output of ours does."""

from __future__ import annotations

from rich import console


class Console(console.Console):
    """Whoever read our output has gone, as `head` does: that is no failed check (rich would end
    the process with 1), and `ops.cli` says what it is."""

    def on_broken_pipe(self) -> None:
        """Called where BrokenPipeError is being handled: let it go on."""
        raise
