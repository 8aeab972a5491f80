"""Answers of a database, kept while nothing is written to it.

Policies ask the same questions many times between two events. A database's own count of changes
says when an answer may be another; who writes must therefore use the same connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Answers:
    """Not to be asked within a transaction that may be rolled back."""

    db: sqlite3.Connection
    _kept: dict[tuple[str, tuple[object, ...]], list[Any]] = field(default_factory=dict)
    _made: dict[str, Any] = field(default_factory=dict)
    _written: int = -1

    def rows(self, sql: str, arguments: tuple[object, ...]) -> list[Any]:
        """All rows of a query; not to be changed by who asks."""
        self._forget_old()
        key = (sql, arguments)
        rows = self._kept.get(key)
        if rows is None:
            rows = self._kept[key] = self.db.execute(sql, arguments).fetchall()
        return rows

    def made(self, name: str, make: Callable[[], T]) -> T:
        """What `make` makes of the database as it is, made once."""
        self._forget_old()
        if name not in self._made:
            self._made[name] = make()
        made: T = self._made[name]
        return made

    def stay(self) -> None:
        """What was written just now changes no answer."""
        self._written = self.db.total_changes

    def _forget_old(self) -> None:
        if self._written != self.db.total_changes:
            self._kept.clear()
            self._made.clear()
            self._written = self.db.total_changes
