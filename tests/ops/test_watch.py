"""The live view's picture: what it says of a run, at any width, whatever the log holds."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from eventlog.codec import decode, pack
from eventlog.events import CoordinatorElected, RunPaused
from eventlog.writer import Stamp
from ops.watch.advice import LEAVE, Advisor
from ops.watch.bars import allot
from ops.watch.live import LiveView
from ops.watch.scene import STATES
from tests.ops.watching import START_NS, STEP_S, at_work, over, records
from tests.support.scenario import Scenario

HOSTILE = "[red]ALARM[/red] \x1b[2J\x1b]0;title\x07\x9b31m\r\nnext \u202eevil\u202c [link=x]"


def drawn(
    scenario: Scenario, width: int = 120, height: int = 60, late_s: float = 0.0, **console
) -> str:
    """The frame's text, `late_s` after the last event."""
    screen = Console(width=width, height=height, file=io.StringIO(), record=True, **console)
    view = LiveView(screen)
    view.update(records(scenario))
    screen.print(view.frame(view.end_s + late_s))
    return screen.export_text()


def row(text: str, site: str) -> list[str]:
    """The cells of a site's row."""
    (line,) = re.findall(rf"^{site} .*$", text, re.MULTILINE)[:1]
    return line.split()


def test_the_header_says_state_round_version_tokens_share_loss_and_who_coordinates() -> None:
    text = drawn(at_work())
    assert "atoll tests  running  round 2  version 1  led by one, elected by #2" in text
    assert "64 of 320 tokens  20 %" in text  # 10 blocks of 4 sequences of 8 tokens
    assert "loss 2.000" in text


def test_each_site_has_a_row_with_what_it_holds_has_done_and_when_it_was_heard() -> None:
    text = drawn(at_work(), late_s=3.0)
    assert row(text, "alpha")[:2] == ["alpha", "delivered"]
    beta = row(text, "beta")
    assert beta[:2] == ["beta", "training"]
    assert "3: 0:5 0:6 0:7" in " ".join(beta)
    assert beta[-7:] == ["1", "32", "2.000", "3", "s", "ago", "1"]
    assert row(text, "gamma")[:3] == ["gamma", "gone:", "lost"]


def test_the_epochs_bar_has_one_cell_a_block_and_a_legend_with_the_counts() -> None:
    text = drawn(at_work())
    assert "epoch 0: 2 of 10 blocks merged" in text
    (bar,) = re.findall(r"^[█▓▒░▁·×]+$", text, re.MULTILINE)
    assert sorted(bar) == sorted("██▓▓▒░▁···")
    assert "█ merged 2  ▓ delivered 2  ▒ trained 1  ░ training 1  ▁ leased 1  · available 3" in text


def test_the_picture_says_what_is_waited_for_and_until_when() -> None:
    text = drawn(at_work())
    assert "round 2 waits for beta (1 of 3 blocks), until all are in, or for 40 s more" in text
    assert "alpha delivered and waits for version 2" in text
    later = drawn(at_work(), late_s=60.0)
    assert "no tick for 1 min" in later


def test_the_last_events_stand_in_words_with_time_and_reason() -> None:
    run = at_work()
    run.operator(RunPaused(reason="the data is suspect"))
    at = len(records(run)) - 1
    moment = f"16:00:{int(at * STEP_S):02}"
    text = drawn(run)
    assert f"{moment}  operator paused the run — the data is suspect" in text
    assert "coordinator granted beta 3 blocks of epoch 0 — a test" in text
    assert "block.started" not in text and "heartbeat" not in text


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
@pytest.mark.parametrize("height", [10, 24])
def test_no_line_is_wider_than_the_screen_nor_the_frame_higher(width: int, height: int) -> None:
    run = at_work()
    for number in range(30):
        run.arrive(f"site-{number}")
    lines = drawn(run, width, height).splitlines()
    assert max(map(len, lines)) <= width
    if width >= 80 and height >= 24:
        assert len(lines) < height  # the terminal's last line stays free
        assert "more" in "\n".join(lines)


def test_on_80_by_24_waiting_and_events_stay_in_sight() -> None:
    run = at_work()
    for number in range(30):
        run.arrive(f"site-{number}")
    text = drawn(run, 80, 24)
    assert "round 2 waits for" in text
    assert "coordinator admitted site-29 — it fits" in text.splitlines()[-1]


def test_what_is_waited_for_has_room_before_events_and_what_is_cut_is_counted() -> None:
    run = at_work()
    run.join("beta", successor=True)
    run.operator(RunPaused(reason="the data is suspect"))
    text = drawn(run, 80, 24)
    assert "beta waits at the door" in text and "alpha delivered and waits" in text
    text = drawn(run, 80, 20, late_s=60.0)
    assert len(text.splitlines()) < 20
    assert "the run is paused" in text and "more lines" in text


def test_without_colours_nothing_but_text_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    screen = Console(width=80, height=24, file=out, force_terminal=True)
    view = LiveView(screen)
    view.update(records(at_work()))
    screen.print(view.frame(view.end_s))
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", out.getvalue())  # no colour
    plain = io.StringIO()
    Console(width=80, file=plain).print(view.frame(view.end_s))
    assert "\x1b" not in plain.getvalue()


def test_on_a_console_without_unicode_the_signs_are_ascii() -> None:
    raw = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    screen = Console(width=100, height=40, file=raw)
    view = LiveView(screen, fit=False)
    view.update(records(at_work()))
    bars = [line for line in screen.render_lines(view.frame(view.end_s))]
    text = "\n".join("".join(segment.text for segment in line).rstrip() for line in bars)
    assert re.search(r"^[#Dt>l.]{10}$", text, re.MULTILINE)
    assert not set(text) & set("█▓▒░▁·━─")


@pytest.mark.parametrize("width", [80, 400])
def test_whatever_a_log_says_is_shown_as_text_and_moves_no_cursor(width: int) -> None:
    run = at_work()
    run.operator(RunPaused(reason=HOSTILE))
    run.append("coordinator", [CoordinatorElected(holder=HOSTILE, reason=HOSTILE)], Stamp())
    run.raw("site.beta", b"\x1b[31mnot an event")
    run.raw("site.beta", pack({"id": "\x1b[2J", "type": HOSTILE}))
    text = drawn(run, width)
    assert "[red]ALARM[/red]" in text
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    view = LiveView(Console(file=io.StringIO()))
    lines = [told.line() for told in view.update(records(run))]
    assert any("[red]ALARM[/red]" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_a_void_event_is_told_with_the_reason() -> None:
    run = at_work()
    gone = run.sites["gamma"]
    assert "does not live" in run.says("gamma", run.delivery(2), gone)
    text = drawn(run, 200)
    assert re.search(
        r"gamma published a delta of 1 block.* — void: incarnation .* does not live", text
    )


def test_a_finished_run_says_its_outcome_and_waits_for_nothing() -> None:
    text = drawn(over(), late_s=1000.0)
    assert "finished" in text and "target met" in text
    assert "─ waiting" not in text


def idle() -> Scenario:
    return Scenario(elect=False)


def paused() -> Scenario:
    run = at_work()
    run.operator(RunPaused(reason="the data is suspect"))
    return run


def deserted() -> Scenario:
    run = Scenario(num_sequences=40)
    run.arrive("alpha")
    assert run.open(alpha=2) == "" and run.depart("alpha") == ""
    return run


STARTS = ["next: atoll coordinate tests", "next: atoll site run tests NAME --data DIR"]


@pytest.mark.parametrize(
    ("scenario", "late_s", "advice"),
    [
        (idle, 0, STARTS),
        (paused, 0, ["next: atoll run resume tests"]),
        (deserted, 0, STARTS[1:]),
        (at_work, 60, STARTS[:1]),
        (at_work, 0, []),
        (
            over,
            0,
            [
                "next: atoll eval tests --data DIR (how good the model is)",
                "next: atoll audit tests --deep (whether it is what the log says)",
            ],
        ),
    ],
)
def test_where_nothing_happens_by_itself_it_says_what_to_do(scenario, late_s, advice) -> None:
    def lines(advisor: Advisor | None) -> list[str]:
        screen = Console(width=100, height=60, file=io.StringIO(), record=True)
        view = LiveView(screen, advisor=advisor)
        view.update(records(scenario()))
        screen.print(view.frame(view.end_s + late_s))
        text = screen.export_text().splitlines()
        return [line for line in text if "next:" in line or "Ctrl-C" in line]

    assert lines(None) == []
    assert lines(Advisor()) == advice
    leave = [f"{advice[-1]} {LEAVE}"] if advice and scenario is not over else advice[-1:]
    assert lines(Advisor(stays=True)) == [*advice[:-1], *leave]


def test_of_a_file_it_says_how_to_check_it_and_to_play_it_again() -> None:
    screen = Console(width=40, file=io.StringIO(), record=True)
    view = LiveView(screen, fit=False, advisor=Advisor(Path("my logs/a.atoll")))
    view.update(records(over()))
    screen.print(view.frame(view.end_s))
    said = " ".join(screen.export_text().split())  # a command is wrapped, and never cut off
    assert "next: atoll audit 'my logs/a.atoll' (whether the log keeps" in said
    assert "next: atoll watch 'my logs/a.atoll' --replay (how it came about)" in said


def test_an_empty_log_is_to_be_created() -> None:
    view = LiveView(Console(file=io.StringIO()), "tests", advisor=Advisor())
    assert view.scene(0.0).next == ("atoll run create CONFIG",)


def test_the_eta_is_what_is_left_at_the_pace_of_the_last_commits() -> None:
    run = at_work()
    view = LiveView(Console(file=io.StringIO()))
    history = records(run)
    view.update(history)
    kinds = [type(entry.event).__name__ for entry in map(decode, history)]
    opened, committed = kinds.index("RoundOpened"), kinds.index("RoundCommitted")
    took_s = (committed - opened) * STEP_S  # for 64 of 320 tokens: a fifth of the target
    since_s = (len(history) - 1 - committed) * STEP_S
    assert view.scene(view.end_s).eta_s == pytest.approx(4 * took_s - since_s)
    run.operator(RunPaused(reason="later"))
    view.update(records(run)[len(history) :])
    assert view.scene(view.end_s).eta_s is None


def test_ages_come_from_the_brokers_times() -> None:
    history = records(at_work())
    view = LiveView(Console(file=io.StringIO()), clock=lambda: history[-1].time_ns / 1e9 + 7)
    view.update(history)
    heard = {site.site: site.heard_s for site in view.scene().sites}
    last = {one.subject: one.time_ns for one in history}
    for site in ("alpha", "beta"):
        behind_s = (history[-1].time_ns - last[f"site.{site}"]) / 1e9
        assert heard[site] == pytest.approx(behind_s + 7)
    assert history[0].time_ns == START_NS


def test_a_log_in_pieces_gives_the_picture_of_the_whole() -> None:
    history = records(at_work())
    whole, pieces = (LiveView(Console(file=io.StringIO())) for _ in range(2))
    whole.update(history)
    for record in history:
        pieces.update([record])
    assert pieces.scene(1e9 * 2) == whole.scene(1e9 * 2)


def test_of_many_blocks_each_state_keeps_a_cell_in_proportion() -> None:
    assert allot([500, 300, 0, 200], 10) == [5, 3, 0, 2]
    for counts in ([10**6, 1, 1, 0, 1], [1] * 7, [0, 0, 5], [999, 1], [7, 10**5, 3, 0, 2]):
        cells = allot(counts, 80)
        assert sum(cells) == 80
        assert [cell > 0 for cell in cells] == [count > 0 for count in counts]
    assert allot([0, 0], 80) == [0, 0]
    run = Scenario(num_sequences=4 * 5000)
    run.arrive("alpha")
    run.open(alpha=3)
    run.grant("alpha", 0, 1, 2)
    (bar,) = re.findall(r"^[█▓▒░▁·×]+$", drawn(run, 80), re.MULTILINE)
    assert bar == "▁" + 79 * "·"
    assert len(STATES) == 7
