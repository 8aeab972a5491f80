"""The live view of a real run, at three widths: reasons and deadlines, strips, timeline, refusals;
and the same with a broker that is away."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from eventlog.chain import Record
from eventlog.codec import decode
from eventlog.events import BlockStarted, DeltaRefused, Heartbeat, SiteDeparted, Transfer
from ops.watch.advice import Advisor
from ops.watch.layout import Section, shares
from ops.watch.link import LinkWatch
from ops.watch.live import LiveView
from ops.watch.strips import sparkline
from tests.ops.recordings import demo_records
from tests.ops.watching import at_work, records

WIDTHS = [80, 120, 200]


class Desk:
    """A view, and the console that records what it draws."""

    def __init__(self, width: int, height: int = 50, **settings) -> None:
        self.screen = Console(width=width, height=height, file=io.StringIO(), record=True)
        self.view = LiveView(self.screen, **settings)

    def draw(self, late_s: float = 0.0) -> str:
        """The picture's text, so long after the last record."""
        self.screen.print(self.view.frame(self.view.end_s + late_s))
        return self.screen.export_text()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """The recorded demo's records."""
    return demo_records(tmp_path_factory.mktemp("demo"))


def until(history: list[Record], kind: type, number: int = 1) -> list[Record]:
    """The records through the first (or a later) event of a kind."""
    for position, record in enumerate(history, 1):
        number -= isinstance(decode(record).event, kind)
        if not number:
            return history[:position]
    raise AssertionError(f"no {kind.__name__}")


def flat(text: str) -> str:
    """Wrapped sentences in one line."""
    return " ".join(text.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_a_wait_has_its_reason_and_its_deadline_at_every_width(demo, width: int) -> None:
    desk = Desk(width)
    desk.view.update(until(demo, BlockStarted, 60))
    text = desk.draw()
    left = (
        text
        if width < 150
        else "\n".join(line[width * 11 // 20 + 3 :] for line in text.splitlines())
    )
    (said,) = re.findall(r"round \d+ waits for .*?\(deadline\)", flat(left))
    assert re.fullmatch(
        r"round \d+ waits for ((, )?\w+ \(\d+ of \d+ blocks\))+, "
        r"until all are in, or for [\d.]+ s more \(deadline\)",
        said,
    )
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_a_silent_site_has_its_reason_and_its_deadline_at_every_width(demo, width: int) -> None:
    before = until(demo, SiteDeparted)[:-3]  # beta was killed; its ticks run out
    desk = Desk(width)
    desk.view.update(before)
    text = flat(desk.draw())
    assert re.search(
        r"beta is silent for [\d.]+ s, departs (as lost in [\d.]+ s|now as lost)", text
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_strips_show_how_loss_and_rate_went_and_who_was_there(demo, width: int) -> None:
    desk = Desk(width, 70)
    desk.view.update(demo)
    text = desk.draw()
    assert re.search(r"loss 6\.806 [▁-█]+ 4\.129  tokens/s [\d,]+ [▁-█]+ [\d,]+", text)
    (beta,) = re.findall(r"^beta  ? *( *[░█]+✕? +[░█]+)", text, re.MULTILINE)
    assert "✕" in beta and not re.search(r"^alpha .*✕", text, re.MULTILINE)
    assert "█ trains  ░ is there  ✕ left" in text


def test_a_low_screen_keeps_waits_and_events_and_gives_strips_up_first(demo) -> None:
    desk = Desk(80, 20)
    desk.view.update(until(demo, BlockStarted, 60))
    text = desk.draw()
    assert len(text.splitlines()) < 20
    assert "waits for" in text and "granted" in text and "is there" not in text


def test_lines_go_first_to_what_matters_most() -> None:
    def section(num: int, least: int, rank: int, grow: int, title: str = "x") -> Section:
        from rich.text import Text

        return Section(title, [Text("x")] * num, least, rank, grow)

    some = [section(9, 2, 1, 2), section(9, 3, 0, 1), section(4, 0, 2, 0)]
    assert shares(None, some) == [9, 9, 4]
    assert shares(4, some) == [0, 3, 0]
    assert shares(7, some) == [2, 3, 0]
    assert shares(10, some) == [2, 3, 2]
    assert shares(14, some) == [2, 5, 4]
    assert shares(100, some) == [9, 9, 4]


def test_what_a_heartbeat_says_of_a_transfer_is_shown_with_rate_and_time_left() -> None:
    run = at_work()
    moving = Transfer(way="up", done_bytes=400_000_000, of_bytes=1_200_000_000, bytes_per_s=4e7)
    beat = Heartbeat(phase="publishing", step=1, tokens=32, tokens_per_s=0.0, transfer=moving)
    assert run.says("beta", beat) == ""
    desk = Desk(120)
    desk.view.update(records(run))
    assert "beta stores its delta: 400 MB of 1.2 GB, 33%, 40 MB/s, 20 s left" in desk.draw()
    assert "480 MB of 1.2 GB, 40%, 40 MB/s, 18 s left" in desk.draw(late_s=2.0)
    (told,) = desk.view.scene(desk.view.end_s).as_json()["transfers"]
    assert (told["site"], told["way"], told["eta_s"], told["measured"]) == (
        "beta",
        "up",
        20.0,
        True,
    )
    assert run.says("beta", run.starting(7)) == ""
    desk = Desk(120)
    desk.view.update(records(run))
    assert "stores its delta" not in desk.draw()


def test_a_version_that_is_fetched_is_shown_at_the_rate_of_the_last_one(demo) -> None:
    committed = until(demo, SiteDeparted)
    kinds = [type(decode(record).event).__name__ for record in demo]
    at = kinds.index("RoundCommitted", len(committed)) + 1
    desk = Desk(120)
    desk.view.update(demo[:at])
    assert "fetches" not in desk.draw()
    text = desk.draw(late_s=1.5)
    assert re.search(r"alpha fetches version \d+: 2\.39 MB, [\d.]+ [kM]B/s as last time", text)


def test_refusals_have_lines_of_their_own() -> None:
    run = at_work()
    (undecided,) = run.view.deltas("undecided")
    refused = DeltaRefused(
        delta=undecided.token, site="alpha", code="outlier", values=True, reason="far too large"
    )
    assert run.decide(refused) == ""
    desk = Desk(100, 60)
    desk.view.update(records(run))
    text = desk.draw()
    assert "alpha delta refused (outlier) — far too large" in text
    (told,) = desk.view.scene().as_json()["refusals"]
    assert (told["site"], told["what"], told["code"]) == ("alpha", "delta", "outlier")


@pytest.mark.parametrize("width", WIDTHS)
def test_while_the_broker_is_away_nothing_is_promised_and_the_remedy_is_the_brokers(
    demo, width: int
) -> None:
    away: list[float | None] = [None]
    desk = Desk(width, away=lambda: away[0], advisor=Advisor())
    desk.view.update(until(demo, BlockStarted, 60))
    assert "done in about" in desk.draw()
    away[0] = 30.0
    text = flat(desk.draw(late_s=30.0))
    assert "broker away" in text and "done in about" not in text
    assert re.search(
        r"the broker does not answer, for 30 s; below is how it stood at event #\d+", text
    )
    assert "next: see to the broker" in text and "atoll coordinate" not in text
    assert "no coordinator that speaks" not in text
    away[0] = None
    text = flat(desk.draw(late_s=31.0))
    assert "broker away" not in text and "no coordinator that speaks" not in text
    text = flat(desk.draw(late_s=60.0))  # it is back, and still nobody ticks
    assert "no coordinator that speaks" in text and "next: atoll coordinate demo" in text


def test_the_link_is_told_once_when_it_breaks_and_once_when_it_is_back() -> None:
    now, up = [0.0], [True]
    link = LinkWatch(lambda: up[0], lambda: now[0])

    def look(at_s: float, is_up: bool) -> str:
        now[0], up[0] = at_s, is_up
        return link.look()

    assert look(0.0, True) == ""
    assert look(1.0, False) == "" and link.away_s is None
    assert look(1.5, True) == ""  # healed within a moment
    assert look(5.0, False) == ""
    assert "does not answer" in look(7.0, False) and link.away_s == 2.0
    assert look(9.0, False) == "" and link.away_s == 4.0
    assert look(25.0, True) == "the broker answers again, after 20 s" and link.away_s is None
    assert look(26.0, True) == ""


@pytest.mark.parametrize("plain", [False, True])
def test_a_sparkline_is_lowest_at_the_lowest_and_has_gaps_where_nothing_is_known(plain) -> None:
    low, high = ("_", "#") if plain else ("▁", "█")
    assert sparkline([1.0, 2.0, float("nan"), 3.0], 4, plain)[::3] == low + high
    assert sparkline([1.0, 2.0, float("nan"), 3.0], 4, plain)[2] == " "
    assert sparkline([5.0, 5.0], 2, plain) == low * 2
    assert len(sparkline(list(range(100)), 40, plain)) == 40
    assert sparkline([float("nan")], 4, plain) == "" == sparkline([], 4, plain)
