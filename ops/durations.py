"""Durations as Slurm or a person writes them: 90m, 4h, MM:SS, HH:MM:SS, D-HH:MM."""

from __future__ import annotations

import re

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str, option: str = "--walltime") -> float:
    """A duration. Raises click.UsageError, which names the option, for none at all too."""
    found_s = _read(text)
    if found_s is None:
        raise click.UsageError(f"{option} {text}: write 90m, 4h, 02:30:00 or 1-12:00")
    if not found_s:
        why = "a job that ends now cannot take part" if option == "--walltime" else "write `never`"
        raise click.UsageError(f"{option} {text}: {why}")
    return found_s


def _read(text: str) -> float | None:
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return float(match[1]) * _UNITS[match[2]]
    if match := re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text):
        days, first, second, third = (int(part) if part else 0 for part in match.groups())
        if match[1] is not None:  # D-HH[:MM[:SS]]
            return days * 86400 + first * 3600 + second * 60 + third
        if match[4] is not None:
            return first * 3600 + second * 60 + third
        if match[3] is not None:
            return first * 60 + second
    return None
