"""The report as one HTML file: headline numbers, then pictures, then tables.

It needs nothing else: no network, no scripts, no fonts; its policy forbids them. The numbers that
it shows stand in it as JSON too. The same facts give the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from string import Template
from typing import Any

from ops.numbers import compact, share, size
from ops.report import charts, exchange, placing, tables
from ops.report.markup import Html, figure, join, tag, text, tile
from outer.waiting import span

Facts = dict[str, Any]
TEMPLATE = Path(__file__).with_name("page.html")


def page(facts: Facts) -> str:
    """The whole file's text."""
    parts = [
        _header(facts),
        _tiles(facts),
        _progress(facts),
        *_pictures(facts),
        *tables.sections(facts),
        _footer(facts),
    ]
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    title = tag("x", f"atoll report: {facts['run']}").removeprefix("<x>").removesuffix("</x>")
    return template.substitute(title=title, body=join(parts), facts=embedded(facts))


def embedded(facts: Facts) -> str:
    """The facts as JSON that cannot end the element it stands in."""
    plain = json.dumps(_finite(facts), ensure_ascii=True, allow_nan=False, sort_keys=True)
    return plain.replace("<", "\\u003c").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """JSON knows no NaN and no infinities: null, as `--json` has them."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return value


def _header(facts: Facts) -> Html:
    ok = facts["audit"]["ok"]
    num = len(facts["audit"]["violations"])
    verdict = "audit holds" if ok else f"audit: {num} violation{'s' * (num != 1)}"
    about = facts["about"]
    what = f"{compact(about['parameters'])} parameters, {about['model']}; " if about else ""
    when = ""
    if facts["began"]:
        began, ended = (facts[name][:19].replace("T", " ") for name in ("began", "ended"))
        when = f"{began} to {ended} UTC, {span(facts['seconds'])}"
    first = join(
        [
            tag("h1", facts["run"], data_fact="run"),
            tag("span", facts["state"], class_="sub", data_fact="state"),
            tag(
                "span", verdict, class_=f"badge {'holds' if ok else 'fails'}", data_fact="audit.ok"
            ),
        ]
    )
    reason = tag("p", facts["reason"]) if facts["reason"] else ""
    return join([tag("header", first), tag("p", what + when, class_="sub"), _origin(facts), reason])


def _origin(facts: Facts) -> Html:
    """Of a fork: where it comes from."""
    come = facts["lineage"]
    if not come:
        return Html("")
    inside = [
        Html("Forked from version "),
        tag("b", f"{come['version']:,}", data_fact="lineage.version"),
        Html(" of run "),
        tag("b", come["run"], data_fact="lineage.run"),
        text(f", {come['tokens']:,} tokens into it; its parameters are "),
        tag("span", come["parameters_digest"][:12], class_="digest",
            data_fact="lineage.parameters_digest"),
        text(f". atoll audit {facts['run']} --parent {come['run']} holds that against its log."),
    ]  # fmt: skip
    return tag("p", Html("".join(inside)))


def _tiles(facts: Facts) -> Html:
    head = facts["headline"]
    before = head["first_perplexity"]
    first_loss = head["first_loss"]
    target = head["target_tokens"]
    tiles = [
        tile(compact(head["perplexity"]), "held-out perplexity",
             f"from {compact(before)}" if before else
             "not measured: atoll eval" if head["perplexity"] is None else "",
             "headline.perplexity"),
        tile("–" if head["loss"] is None else f"{head['loss']:.3f}", "training loss",
             "" if first_loss is None else f"from {first_loss:.3f}", "headline.loss"),
        tile(compact(head["tokens"]), "merged tokens",
             f"of {compact(target)}" if target else "", "headline.tokens"),
        tile(f"{head['version']:,}", "versions", f"{len(facts['rounds']):,} rounds opened",
             "headline.version"),
        tile(f"{head['sites']:,}", "sites",
             f"lives: {head['lives']:,}, departures: {head['departures']:,}", "headline.sites"),
        tile(compact(head["tokens_per_s"]), "merged tokens a second", "of all sites together",
             "headline.tokens_per_s"),
        tile(share(head["stall"]), "stalled by the exchange", "of trainers' wall time",
             "headline.stall"),
        tile(share(head["reclaimed_share"]), "of granted blocks taken back",
             f"{head['refused_deltas']:,} deltas refused", "headline.reclaimed_share"),
    ]  # fmt: skip
    return tag("div", join(tiles), class_="tiles")


def _progress(facts: Facts) -> Html:
    done = facts["headline"]["share"]
    if done is None:
        return Html("")
    said = f"{int(done * 100)} % of the target"
    inside = tag("span", "", style=f"width:{100 * done:.1f}%")
    return join(
        [
            tag("div", inside, class_="bar", role="img", aria_label=said),
            tag("p", said, class_="note"),
        ]
    )


def _pictures(facts: Facts) -> list[Html]:
    many = len(facts["sites"]) - charts.MAX_SITES
    hidden = f" {many:,} more sites are in the tables only." if many > 0 else ""
    num_sites = min(len(facts["sites"]), charts.MAX_SITES)
    tall = (1.0 + 0.42 * num_sites, 1.4 + 0.36 * num_sites)
    learning = _learning(facts)
    found = [tag("h2", "What it learned"), *learning, *tables.beside(facts["baseline"])]
    if facts["sites"]:
        found += [tag("h2", "Who was there"), figure("presence", tall, charts.presence(facts), (
            "Each site from its admission on: strong where it trained, pale where it was there; "
            "a cross where it departed, with the reason. Dotted: another coordinator took over."
            + " Grey: the run was paused." * bool(facts["pauses"]) + hidden))]  # fmt: skip
        found += [
            tag("h2", "What came of the work"),
            figure("outcomes", tall, charts.outcomes(facts), 
                   "Blocks granted, by outcome." + hidden),
            figure("goodput", tall, charts.goodput(facts), "Goodput by site: tokens that reached "
                   "the model, over the time that the site was there." + hidden),
        ]  # fmt: skip
    if any(one["phases"] for one in facts["rounds"]):
        found += [tag("h2", "What the exchange cost"), figure("overhead", (4.0, 4.6),
                  exchange.overhead(facts), "The exchange by round. Phases run beside the training "
                  "or hold it up, as the run's overlap says; what trainers stood still for is the "
                  "overhead.")]  # fmt: skip
    if any(one["committed_s"] is not None for one in facts["rounds"]):
        stored = facts["bytes"]
        ratio = stored["delta_ratio"]
        saved = f" Deltas take 1/{ratio:.3g} of what fp32 would." if ratio and ratio > 1.05 else ""
        caption = (
            f"Stored: deltas {size(stored['deltas'])}, updates {size(stored['updates'])}, "
            f"{stored['num_snapshots']:,} snapshots {size(stored['snapshots'])}.{saved}"
        )
        found.append(figure("stored", (2.6, 2.9), exchange.stored(facts), caption))
    return [*found, *placing.pictures(facts)]


def _learning(facts: Facts) -> list[Html]:
    if not facts["versions"] and not facts["evaluations"]:
        return [tag("p", "No version has been made, so there are none yet.")]
    beside = ", beside the same model trained on one machine" if facts["baseline"] else ""
    heights = (2.9, 5.0)
    over_tokens, over_time = (charts.learning(facts, by_time) for by_time in (False, True))
    return [
        figure("tokens", heights, over_tokens, f"Loss and perplexity over tokens{beside}."),
        figure("time", heights, over_time, "Loss and perplexity over wall time."),
    ]


def _footer(facts: Facts) -> Html:
    audit = facts["audit"]
    return tag("footer", join([
        tag("p", join([Html("Log digest"), tag("span", audit["log_digest"], class_="digest",
                                              data_fact="audit.log_digest")])),
        tag("p", join([Html("Model digest"), tag("span", audit["model_digest"] or "–",
                                                class_="digest", data_fact="audit.model_digest")])),
        tag("p", "Made from the log alone by atoll report; every number above stands in this file "
                 "as JSON (the element with the id facts), and the same log gives the same file."),
    ]))  # fmt: skip
