"""`atoll completion`: what a shell needs to complete atoll's commands and options."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes SHELL complete atoll's commands and options.

    For the shell that runs: `eval "$(atoll completion bash)"` (fish: `atoll completion fish |
    source`). For good: that line in ~/.bashrc or ~/.zshrc (after compinit), or the output in
    ~/.config/fish/completions/atoll.fish.
    """
    from click.shell_completion import get_completion_class

    from ops.cli import root

    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    click.echo(kind(root, {}, "atoll", "_ATOLL_COMPLETE").source())
