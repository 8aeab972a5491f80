"""The report on queues: when jobs waited and ran, and whether starts kept to what was forecast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from ops.numbers import time_unit
from ops.report.canvas import COLOUR, steps, timeline
from ops.report.charts import MAX_SITES
from ops.report.markup import Html, figure, join, lasting, table, tag
from outer.waiting import span

Facts = dict[str, Any]
MAX_ROWS = 60  # of jobs and of events; the JSON has all
WELL = ("completed", "walltime", "running", "pending", "submitted", "intended")
TICKS = {
    1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 21_600: "6 h", 86_400: "1 d",
    7 * 86_400: "7 d", 30 * 86_400: "30 d",
}  # fmt: skip
JOB = ("site", "job", "nodes", "limit", "asked after", "forecast", "waited", "ran", "became")


def pictures(facts: Facts) -> list[Html]:
    """Jobs over time, and their forecasts beside what came; nothing where no agent wrote."""
    found = facts["queues"]
    if not found:
        return []
    sites = _sites(found)
    hidden = len({one["site"] for one in found["jobs"]}) - len(sites)
    jobs = (
        "Jobs of each site: above, the time that one waits in its queue, with a stroke where the "
        "plan expected its start; below, the time that it runs. A cross: it failed (red) or "
        "was withdrawn (grey)." + f" {hidden:,} more sites are in the JSON only." * (hidden > 0)
    )
    tall = (1.3 + 0.5 * len(sites), 1.6 + 0.46 * len(sites))
    shown = [tag("h2", "How jobs came by nodes"), figure("jobs", tall, history(facts), jobs)]
    if found["starts"]:
        caption = (
            "Forecasts that jobs were submitted on, each made from earlier starts alone. Left: the "
            "middle of the forecast and what came, with the forecast's 10 to 90 per cent; red: it "
            "came outside them. Right: the share of starts within each bound; on the dotted line "
            "a bound is what it says. Hollow: from the prior, before enough starts were seen."
        )
        shown.append(figure("calibration", (3.4, 6.2), calibration(facts), caption))
    return shown


def sections(facts: Facts) -> Iterable[Html]:
    """The tables: bounds, jobs, and what agents and planner wrote, where they wrote anything."""
    found, events = facts["queues"], facts["placement"]
    if not found and not events:
        return
    yield tag("h2", "Placement")
    if found:
        yield tag("ul", join(tag("li", line) for line in _judged(found)))
        said = {one["job"]: one["said_s"] for one in found["starts"]}
        rows = [_row(one, said.get(one["job"])) for one in found["jobs"][-MAX_ROWS:]]
        yield table(JOB, rows, ("site", "job", "became"))
    if events:
        columns = ("after", "from", "what", "says")
        shown = [one for one in events if one["type"] != "placement.probed"][-MAX_ROWS:]
        rows = [[span(one["at_s"]), one["from"], one["type"], _said(one)] for one in shown]
        probes = sum(one["type"] == "placement.probed" for one in events)
        content = [
            tag("summary", "What agents and planner wrote"),
            table(columns, rows, columns[1:]),
            tag("p", f"{probes:,} probes of queues are in the JSON.", class_="note"),
        ]
        yield tag("details", join(content))


def _judged(found: Facts) -> Iterable[str]:
    started, prior = len(found["starts"]), found["from_prior"]
    yield (
        f"{len(found['jobs']):,} jobs were asked for, {started:,} forecasts met a start; "
        f"{prior:,} of them are from the prior, which is not judged below"
    )
    for one in found["bounds"]:
        yield (
            f"{one['level']:.0%} bound: {one['share']:.1%} started within it (95 % interval "
            f"{one['low']:.1%} to {one['high']:.1%}; {one['num']:,} starts in "
            f"{one['num_clusters']:,} clusters)"
        )
    if not found["bounds"]:
        yield "no forecast rests on starts that were seen, so there is no bound to judge yet"


def _row(job: dict[str, Any], said_s: float | None) -> list[Any]:
    ran = None
    if job["started_s"] is not None and job["ended_s"] is not None:
        ran = job["ended_s"] - job["started_s"]
    became = job["state"] + (f": {job['message']}" if job["message"] else "")
    return [
        job["site"], job["job"], job["nodes"], span(job["walltime_s"]), lasting(job["since_s"]),
        lasting(said_s), lasting(job["wait_s"]), lasting(ran), became,
    ]  # fmt: skip


def _said(event: dict[str, Any]) -> str:
    shown = ("job_name", "job_id", "outcome", "message", "reason")
    return "; ".join(str(event[name]) for name in shown if event.get(name))


def _sites(found: Facts) -> list[str]:
    """Those that have the most jobs, by name."""
    names = [one["site"] for one in found["jobs"]]
    most = sorted(set(names), key=lambda name: (-names.count(name), name))
    return sorted(most[:MAX_SITES])


def history(facts: Facts) -> Any:
    """When each site's jobs waited and ran."""

    def draw(figure: Figure, narrow: bool) -> None:
        axes = figure.subplots()
        found = facts["queues"]
        step_s, _ = time_unit(facts["seconds"])
        sites = _sites(found)
        row = {site: number for number, site in enumerate(sites)}
        for job in found["jobs"]:
            if job["site"] in row:
                _job(axes, job, row[job["site"]], facts["seconds"], step_s)
        for colour, name in (("c5", "waits in its queue"), ("c3", "runs")):
            axes.bar([0], [0], color=COLOUR[colour], label=name, lw=0)
        axes.plot([], [], "|", color=COLOUR["ink"], markersize=8, label="start expected")
        timeline(axes, sites, facts["seconds"], narrow)
        figure.legend(loc="outside upper left", ncols=2 if narrow else 3)

    return draw


def _job(axes: Axes, job: dict[str, Any], row: int, end_s: float, step_s: float) -> None:
    since, started, ended = job["since_s"], job["started_s"], job["ended_s"]
    last = end_s if ended is None else ended
    if since is not None:
        until = last if started is None else started
        bar = (since / step_s, max(0.0, until - since) / step_s)
        axes.broken_barh([bar], (row - 0.3, 0.2), color=COLOUR["c5"], lw=0)
    if job["expected_s"] is not None and since is not None:
        at = max(job["expected_s"], since) / step_s
        axes.plot([at], [row - 0.2], "|", color=COLOUR["ink"], markersize=8, mew=1.3)
    if started is not None:
        bar = (started / step_s, max(0.0, last - started) / step_s)
        axes.broken_barh(  # with an edge: jobs that follow each other are two
            [bar], (row - 0.06, 0.36), facecolor=COLOUR["c3"], edgecolor=COLOUR["paper"], lw=0.8
        )
    if job["state"] not in WELL:
        where = row - 0.2 if started is None else row + 0.12
        colour = COLOUR["muted" if job["state"] == "cancelled" else "bad"]
        axes.plot([last / step_s], [where], "X", color=colour, markersize=8,
                  markeredgecolor=COLOUR["paper"])  # fmt: skip


def calibration(facts: Facts) -> Any:
    """Each forecast beside what came, and how often bounds held."""

    def draw(figure: Figure, narrow: bool) -> None:
        grid: Any = figure.subplots(2 if narrow else 1, 1 if narrow else 2)
        waits, shares = grid
        _waits(waits, facts["queues"]["starts"])
        _shares(shares, facts["queues"])

    return draw


def _waits(axes: Axes, starts: list[dict[str, Any]]) -> None:
    """In logarithms; what is shorter than a second counts as one."""
    everything = [one[name] for one in starts for name in ("wait_s", "low_s", "said_s", "high_s")]
    low, high = max(1.0, min(everything)), max(60.0, *everything)
    axes.plot([low, high], [low, high], ":", color=COLOUR["muted"], lw=1.2)
    for one in starts:
        at = max(1.0, one["wait_s"])
        outside = not one["low_s"] <= one["wait_s"] <= one["high_s"]
        colour = COLOUR["bad" if outside else "c1"]
        spread = [max(1.0, one["low_s"]), max(1.0, one["high_s"])]
        axes.plot(spread, [at, at], color=colour, lw=1, alpha=0.35)
        fill = "none" if one["prior"] else colour
        axes.plot([max(1.0, one["said_s"])], [at], "o", color=colour, mfc=fill, markersize=4.5)
    ends = (low / 1.3, high * 1.3)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        shown = {at: name for at, name in TICKS.items() if ends[0] <= at <= ends[1]}
        axis.set_ticks(list(shown), list(shown.values()))
        axis.set_minor_locator(NullLocator())
    axes.set_title("waits")
    axes.set_xlabel("forecast")
    axes.set_ylabel("came")


def _shares(axes: Axes, found: Facts) -> None:
    axes.plot([0, 1], [0, 1], ":", color=COLOUR["muted"], lw=1.2)
    judged = len(found["starts"]) - found["from_prior"]
    lines = (
        ("curve", f"from starts seen ({judged:,})", "c1", "-"),
        ("prior_curve", f"from the prior ({found['from_prior']:,})", "muted", "--"),
    )
    for name, says, colour, line in lines:
        if found[name]:
            axes.plot(*zip(*found[name], strict=True), ls=line, marker="o", markersize=3.5,
                      mfc="none" if line == "--" else None, color=COLOUR[colour], lw=1.2,
                      label=says)  # fmt: skip
    percent = FuncFormatter(lambda x, _: f"{100 * x:.0f} %")
    axes.set(xlim=(0, 1), ylim=(0, 1.03))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(steps(5))
        axis.set_major_formatter(percent)
    axes.set_title("starts within a bound")
    axes.set_xlabel("bound")
    axes.legend(loc="lower right" if not found["curve"] else "upper left")
