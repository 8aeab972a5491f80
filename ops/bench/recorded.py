"""An event of a log as a domain event of the eventsourcing library, which finds it by this name."""

from __future__ import annotations

from typing import Any

from eventsourcing.domain import DomainEvent


class Recorded(DomainEvent):
    """`wire`: the payload as plain data."""

    wire: dict[str, Any]
