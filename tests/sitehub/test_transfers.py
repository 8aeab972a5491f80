"""What a heartbeat says of transfers: the one with most left, at the rate of this attempt."""

from __future__ import annotations

from sitehub.transfers import Transfers


def test_the_transfer_with_most_left_is_told_at_its_own_rate() -> None:
    now, found = [0.0], Transfers()
    up = found.begin("up", "delta", lambda: now[0])
    down = found.begin("down", "update", lambda: now[0])
    assert found.largest() is None
    up(600, 1000)  # of which 500 or so were there before this attempt
    down(0, 300)
    now[0] = 4.0
    up(800, 1000)
    told = found.largest()
    assert told is not None and (told.way, told.done_bytes, told.of_bytes) == ("down", 0, 300)
    down(200, 300)
    told = found.largest()
    assert told is not None and (told.way, told.bytes_per_s) == ("up", 50.0)
    up(1000, 1000)
    told = found.largest()
    assert told is not None and (told.way, told.bytes_per_s) == ("down", 50.0)
    found.end("update")
    assert found.largest() is None


def test_an_attempt_that_begins_anew_forgets_the_rate_of_the_last_one() -> None:
    now, found = [0.0], Transfers()
    first = found.begin("up", "delta", lambda: now[0])
    first(0, 1000)
    now[0] = 1.0
    first(100, 1000)
    again = found.begin("up", "delta", lambda: now[0])
    assert found.largest() is None
    again(100, 1000)
    told = found.largest()
    assert told is not None and (told.done_bytes, told.bytes_per_s) == (100, 0.0)
