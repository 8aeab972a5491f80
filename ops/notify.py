"""Tells systemd, where it started us, that we are ready (sd_notify(3), by hand: one datagram)."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send a state such as READY=1; without systemd nothing happens."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place:
        return
    address = "\0" + place[1:] if place.startswith("@") else place
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as pipe:
        pipe.connect(address)
        pipe.sendall(state.encode())
