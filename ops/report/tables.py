"""The tables of a report, below its pictures."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp
from typing import Any

from leases.goodput import LOSSES
from leases.overhead import SECONDS
from ops.numbers import compact, share, size
from ops.report import placing
from ops.report.markup import Html, join, lasting, table, tag
from outer.waiting import span

Facts = dict[str, Any]
MAX_ROWS = 60  # of departures, refusals and rounds; the JSON has all
EPOCH = ("epoch", "blocks", "merged", "open", "duplicated", "lost", "quarantined", "reclaimed",
         "closed")  # fmt: skip
SITE = ("site", "lives", "present", "merged tokens", "tokens/s of presence", "kept", "granted",
        "merged", "stolen", "taken back", "deltas", "sent", "stalled")  # fmt: skip
BESIDE = ("", "held-out loss, nats", "perplexity", "tokens", "steps", "sequences a step",
          "peak rate")  # fmt: skip
GOODPUT = ("site", "device-hours", "tokens/s", "MFU", "training", "lost", "blocked", "idle",
           "evaluating", "starting", "rest", "device")  # fmt: skip
CHECKED = (
    "{events:,} events, each judged where it stands by the fold that everybody uses, and counted "
    "once more apart from it",
    "{versions:,} versions, each one step behind the last, with the digests that commits name",
    "{merged:,} merged blocks: each at most once an epoch (P1), by whom its lease allowed (P4), "
    "with the weight that the data gives it (P5)",
    "epochs that closed: {closed:,}; lost blocks in them: {lost:,}",
    "every decision of the coordinator against the rules that allow it, and what it owed",
    "the log's own digest, through sequence {anchored_through:,} attested by a later event",
)
SIGNED = "signatures that named keys had to give: {signatures:,}, each verified"


def sections(facts: Facts) -> list[Html]:
    """All tables, with their headings; those that would be empty are left out."""
    return [
        *_audit(facts["audit"]),
        *_sites(facts),
        *_goodput(facts["goodput"]),
        *_departures(facts),
        *_refusals(facts),
        *_overheads(facts["audit"]["overheads"]),
        *placing.sections(facts),
        *_rounds(facts["rounds"]),
        *_about(facts),
    ]


def beside(baseline: dict[str, Any] | None) -> Iterable[Html]:
    """The run's newest evaluation and the centralised baseline's, where one was given."""
    if baseline is None:
        return
    yield tag("h2", "Beside one machine")
    compared = baseline["compared"]
    rows: list[list[Any]] = [
        ["one machine", f"{baseline['loss']:.4f}", compact(baseline["perplexity"]),
         baseline["tokens"], baseline["steps"], baseline["batch_sequences"],
         f"{baseline['lr']:g}"]
    ]  # fmt: skip
    if compared is not None:
        loss = tag("span", f"{compared['loss']:.4f}", data_fact="baseline.compared.loss")
        perplexity = compact(exp(min(compared["loss"], 700.0)))
        run = [f"this run, version {compared['version']}", loss, perplexity, compared["tokens"]]
        rows.insert(0, [*run, "", "", ""])
    yield table(BESIDE, rows, BESIDE[:1])
    if compared is None:
        yield tag("p", "No version of the run was evaluated, so there is no gap to tell.")
        return
    gap = tag("b", f"{compared['gap_nats']:+.4f}", data_fact="baseline.compared.gap_nats")
    yield tag("p", Html(f"The gap is {gap} nats a token; above 0 the run is worse."))
    if compared["unlike"]:
        said = f"Not like with like: {'; '.join(compared['unlike'])}."
        yield tag("p", said, class_="bad", data_fact="baseline.compared.unlike")


def _goodput(goodput: dict[str, Any]) -> Iterable[Html]:
    """What devices' time went into: `leases.goodput`."""
    if not goodput["sites"]:
        return
    yield tag("h2", "What the time went into")
    whole = {**goodput, "site": "all", "device": "", "wall_s": None}
    rows = [
        [
            one["site"],
            f"{one['device_hours']:.2f}",
            compact(one["tokens_per_s"]),
            share(one["mfu"]),
            share(one["training_share"]),
            *(share(one["lost_share"][name]) for name in LOSSES),
            one["device"],
        ]
        for one in [*goodput["sites"], whole]
    ]
    yield table(GOODPUT, rows, (GOODPUT[0], GOODPUT[-1]))
    said = (
        "Shares of the time from admissions to departures. Training: of blocks that were merged; "
        "lost: trained, and not merged; blocked, idle: stood still for the exchange, or for want "
        "of work; rest: nobody measured it. MFU is told where the device's peak is known."
    )
    yield tag("p", said, class_="note")


def _audit(audit: dict[str, Any]) -> Iterable[Html]:
    yield tag("h2", "What the audit checked")
    merged = sum(one["merged"] for one in audit["epochs"])
    closed = sum(one["closed"] for one in audit["epochs"])
    lost = sum(one["lost"] for one in audit["epochs"])
    counts = {**audit, "merged": merged, "closed": closed, "lost": lost}
    told = (*CHECKED, SIGNED) if audit["signatures"] else CHECKED
    lines = (text.format(**counts) for text in told)
    yield tag("ul", join(tag("li", line) for line in lines))
    yield tag("p", "It did not recompute the versions from the deltas: atoll audit --deep does.",
              class_="note")  # fmt: skip
    if audit["violations"]:
        yield tag("h3", "Violations", class_="bad")
        columns = ("sequence", "promise", "rule", "site", "block", "what", "should have been")
        names = ("sequence", "promise", "rule", "site", "block", "what", "expected")
        rows = [[one[name] for name in names] for one in audit["violations"][:MAX_ROWS]]
        yield table(columns, rows, columns[1:])
    if audit["epochs"]:
        rows = [
            [*(one[name] for name in EPOCH[:-1]), "yes" if one["closed"] else "no"]
            for one in audit["epochs"][-MAX_ROWS:]
        ]
        yield table(EPOCH, rows, ())
    void = audit["num_void"]
    yield tag(
        "p",
        f"Void events, recorded without effect: {void:,}." if void else "No event is void.",
        data_fact="audit.num_void",
    )


def _sites(facts: Facts) -> Iterable[Html]:
    if not facts["sites"]:
        return
    yield tag("h2", "Sites")
    rows = [
        [
            one["site"],
            one["lives"],
            span(one["present_s"]),
            one["merged_tokens"],
            compact(one["goodput_tokens_per_s"]),
            share(one["kept"]),
            one["granted_blocks"],
            tag("span", f"{one['merged_blocks']:,}", data_fact=f"sites.{one['site']}.merged"),
            one["stolen_blocks"],
            sum(one["reclaimed_blocks"].values()),
            one["deltas"],
            size(one["delta_bytes"]),
            share(one["stall"]),
        ]
        for one in facts["sites"]
    ]
    yield table(SITE, rows, ("site",))
    yield tag("p", "Kept: of the tokens that it trained, the share that was merged.", class_="note")


def _departures(facts: Facts) -> Iterable[Html]:
    gone = [one for one in facts["lives"] if one["left_s"] is not None]
    if not gone:
        return
    yield tag("h2", "Departures")
    columns = ("site", "life", "after", "was there for", "code", "reason")
    rows = [
        [
            one["site"],
            f"#{one['incarnation']}",
            span(one["left_s"]),
            span(one["left_s"] - one["came_s"]),
            one["code"],
            one["reason"],
        ]
        for one in gone[-MAX_ROWS:]
    ]
    yield table(columns, rows, ("site", "code", "reason"))
    back = sum(one["unstarted"] + one["started"] for one in facts["audit"]["departures"])
    yield tag("p", f"Blocks that they gave back, to be granted again: {back:,}.", class_="note")


def _refusals(facts: Facts) -> Iterable[Html]:
    if not facts["refusals"]:
        return
    yield tag("h2", "Refusals")
    columns = ("after", "site", "what", "code", "reason")
    rows = [
        [span(one["at_s"]), one["site"], one["what"], one["code"], one["reason"]]
        for one in facts["refusals"][-MAX_ROWS:]
    ]
    yield table(columns, rows, columns[1:])


def _overheads(overheads: list[dict[str, Any]]) -> Iterable[Html]:
    if not overheads:
        return
    yield tag("h2", "The exchange by site")
    columns = ("site", "rounds", *SECONDS, "stall of wall")
    rows = [
        [
            one["site"],
            one["rounds"],
            *(f"{one[name] / one['rounds']:.2f}" for name in SECONDS),
            share(one["share"]),
        ]
        for one in overheads
    ]
    yield table(columns, rows, ("site",))
    yield tag("p", "Mean seconds a round, by the clocks of those who measured them.", class_="note")


def _rounds(rounds: list[dict[str, Any]]) -> Iterable[Html]:
    if not rounds:
        return
    columns = ("round", "opened after", "lasted", "deltas", "deltas' bytes", "update", "stalled")
    rows = [
        [
            one["round"],
            lasting(one["opened_s"]),
            _lasted(one),
            one["deltas"],
            size(one["delta_bytes"]),
            size(one["update_bytes"]),
            share(one["stall"]),
        ]
        for one in rounds[-MAX_ROWS:]
    ]
    more = len(rounds) - MAX_ROWS
    title = "Rounds" + (f" (the last {MAX_ROWS}; {more:,} earlier ones in the JSON)" * (more > 0))
    yield tag("details", join([tag("summary", title), table(columns, rows, ())]))


def _lasted(one: dict[str, Any]) -> str:
    if one["opened_s"] is None or one["committed_s"] is None:
        return lasting(None)
    return lasting(one["committed_s"] - one["opened_s"])


def _about(facts: Facts) -> Iterable[Html]:
    if not facts["about"]:
        return
    rows = [[name.replace("_", " "), _plain(value)] for name, value in facts["about"].items()]
    rows += [["coordinators", f"{len(facts['terms'])} terms"]]
    content = table(("of the run", "is"), rows, ("of the run", "is"))
    yield tag("details", join([tag("summary", "How it was set"), content]))


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{value[key]:,} {key}" for key in value)
    return f"{value:,}" if isinstance(value, int) else str(value)
