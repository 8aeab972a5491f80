"""Kept answers are never older than the last write."""

from __future__ import annotations

import sqlite3

from leases.answers import Answers


def test_an_answer_is_kept_until_something_is_written_and_then_asked_anew() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("CREATE TABLE t (x INTEGER)")
    answers, asked = Answers(db), []
    db.set_trace_callback(lambda sql: asked.append(sql))
    assert answers.rows("SELECT x FROM t", ()) == []
    assert answers.rows("SELECT x FROM t", ()) == []
    assert len(asked) == 1
    for write, found in (
        ("INSERT INTO t VALUES (1)", [(1,)]),
        ("UPDATE t SET x = 2", [(2,)]),
        ("DELETE FROM t", []),
    ):
        db.execute(write)
        assert answers.rows("SELECT x FROM t", ()) == found
    assert answers.rows("SELECT ?", (1,)) != answers.rows("SELECT ?", (2,))
