"""The numbers of a report as one JSON object: what the page shows, and what is embedded in it.

Pure: audit, lease table and chronicle of one log in, plain values out; the same log gives the same
object. Times are seconds since the log's first record, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from leases.audit import Audit
from leases.findings import Findings, Share
from leases.overhead import SECONDS
from leases.progress import goal, share_done
from leases.view import View
from ops.compared import Result, compare
from ops.placement.history import Start
from ops.report.chronicle import Chronicle, Life, Round, Tally
from ops.report.queues import queues

FORMAT = 1
MAX_VOID = 200  # void events that are listed one by one; all are counted
_FP32_BYTES = 4


def facts(
    audit: Audit,
    found: Chronicle,
    starts: Sequence[Start],
    baseline: Result | None = None,
) -> dict[str, Any]:
    """Everything a report says (docs/report.md). Raises nothing on a log that an audit has read.
    `baseline`: the centralised training that the run is held beside."""
    findings, view = audit.result(), audit.view
    lives = sorted(found.lives.values(), key=lambda life: life.incarnation)
    whole: dict[str, Any] = {
        "format": FORMAT,
        "run": findings.run,
        "state": view.run().state,
        "reason": view.run().reason,
        "began": _moment(found.began_ns),
        "ended": _moment(found.ended_ns if found.began_ns is not None else None),
        "seconds": found.seconds,
        "ran_until_s": found.ran_until_s,
        "about": _about(view, found),
        "versions": _versions(view, found),
        "evaluations": found.evaluations,
        "lineage": findings.lineage.model_dump(mode="json") if findings.lineage else None,
        "baseline": _baseline(baseline, findings),
        "goodput": found.goodput.as_json(),
        "sites": _sites(findings, view, found, lives),
        "lives": [asdict(life) for life in lives],
        "working": {site: spells.spells for site, spells in sorted(found.working.items())},
        "rounds": [_round(found.rounds[number]) for number in sorted(found.rounds)],
        "terms": found.terms,
        "pauses": found.pauses,
        "refusals": found.refusals,
        "bytes": _bytes(view, found),
        "placement": found.placement,
        "queues": queues(view.db, starts, found.began_ns),
        "audit": _audit(findings),
    }
    return {**whole, "headline": _headline(whole, view)}


def _moment(time_ns: int | None) -> str | None:
    if time_ns is None:
        return None
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).isoformat()


def _about(view: View, found: Chronicle) -> dict[str, Any]:
    """What was to be trained, and how; {} where the run was never created."""
    if found.created is None or not view.exists():
        return {}
    config = view.config()
    return {
        "parameters": found.created.num_parameters,
        "model": str(config.model.get("model_type", "")),
        "target": config.target.model_dump(exclude_none=True),
        "inner_steps": config.inner.steps,
        "batch_sequences": config.inner.batch_sequences,
        "sequence_tokens": found.created.data.sequence_tokens,
        "delta_codec": config.outer.delta_codec,
        "update_codec": config.outer.update_codec,
        "overlap": config.outer.overlap,
        "lease_s": config.lease_s,
        "config_digest": found.created.config_digest,
        "manifest_digest": found.created.data.manifest_digest,
    }


def _baseline(baseline: Result | None, findings: Findings) -> dict[str, Any] | None:
    """The centralised training, and the newest evaluation beside its own where there is one."""
    if baseline is None:
        return None
    compared = compare(baseline, findings)
    names = {"kind", "manifest_digest"}
    told = baseline.model_dump(mode="json", exclude=names)
    return {**told, "compared": compared.as_json() if compared else None}


def _versions(view: View, found: Chronicle) -> list[dict[str, Any]]:
    return [
        {
            "version": one.version,
            "round": one.round,
            "at_s": found.round(one.round).committed_s,
            "tokens": one.tokens,
            "merged_tokens": one.merged_tokens,
            "loss": one.loss,
        }
        for one in view.versions()
    ]


def _sites(
    findings: Findings, view: View, found: Chronicle, lives: list[Life]
) -> list[dict[str, Any]]:
    merged = {
        site: (tokens, state)
        for site, tokens, state in view.db.execute(
            "SELECT site, sum(merged_tokens), "
            "max(CASE WHEN state != 'departed' THEN state ELSE '' END) "
            "FROM incarnations GROUP BY site ORDER BY site"
        )
    }
    shares = {share.site: share for share in findings.shares}
    stalls = {one.site: one.share for one in findings.overheads}
    return [
        _site(
            site,
            tokens,
            state or "departed",
            shares.get(site) or Share(site, 0, 0, 0, {}),
            found.tally(site),
            [life for life in lives if life.site == site],
            found.ran_until_s,
            stalls.get(site),
        )
        for site, (tokens, state) in merged.items()
    ]


def _site(
    site: str,
    merged_tokens: int,
    state: str,
    share: Share,
    tally: Tally,
    lives: list[Life],
    end_s: float,
    stall: float | None,
) -> dict[str, Any]:
    """`goodput_tokens_per_s`: merged tokens over the time it was there; `kept`: the share of what
    it trained that was merged; `other_blocks`: granted, and neither merged nor taken back: refused
    with their delta, or still on their way when the log ends."""
    present_s = sum((end_s if life.left_s is None else life.left_s) - life.came_s for life in lives)
    trained = tally.trained_tokens
    taken = share.merged + share.stolen + sum(share.reclaimed.values())
    return {
        "site": site,
        "state": state,
        "lives": len(lives),
        "present_s": present_s,
        "training_s": tally.training_s,
        "merged_tokens": merged_tokens,
        "trained_tokens": trained,
        "goodput_tokens_per_s": merged_tokens / present_s if present_s > 0 else 0.0,
        "kept": merged_tokens / trained if trained else None,
        "granted_blocks": share.granted,
        "merged_blocks": share.merged,
        "stolen_blocks": share.stolen,
        "reclaimed_blocks": share.reclaimed,
        "other_blocks": max(0, share.granted - taken),
        "deltas": tally.deltas,
        "delta_bytes": tally.delta_bytes,
        "refused_deltas": tally.refused,
        "stall": stall,
    }


def _round(one: Round) -> dict[str, Any]:
    """Times, bytes, and the mean seconds per phase of the sites that told them."""
    means = {name: one.exchange[name] / one.num_rows for name in SECONDS} if one.num_rows else {}
    told = asdict(one)
    del told["exchange"], told["num_rows"]
    wall = one.exchange["wall"]
    stall = one.exchange["stall"] / wall if wall > 0 else None
    return {**told, "sites": one.num_rows, "phases": means, "stall": stall}


def _bytes(view: View, found: Chronicle) -> dict[str, Any]:
    """What was stored, each blob once; `delta_ratio`: what a merged delta would have in fp32 over
    what it has."""
    parameters = view.run().num_parameters if view.exists() else 0
    merged = sum(one.deltas for one in found.rounds.values())
    in_cuts = sum(one.delta_bytes for one in found.rounds.values())
    return {
        "deltas": sum(tally.delta_bytes for tally in found.tallies.values()),
        "updates": sum(one.update_bytes for one in found.rounds.values()),
        "snapshots": sum(one["bytes"] for one in found.snapshots),
        "num_snapshots": len(found.snapshots),
        "delta_ratio": _FP32_BYTES * parameters * merged / in_cuts if in_cuts else None,
    }


def _audit(findings: Findings) -> dict[str, Any]:
    """As `atoll audit --json --explain` prints it, but of the void events the first MAX_VOID."""
    whole = findings.as_json() | findings.explained()
    return {**whole, "void": whole["void"][:MAX_VOID], "num_void": len(findings.void)}


def _headline(whole: dict[str, Any], view: View) -> dict[str, Any]:
    """The numbers that are read first; None where there is none."""
    versions, evaluations = whole["versions"], whole["evaluations"]
    losses = [one["loss"] for one in versions if one["loss"] is not None]
    begun = [one["opened_s"] for one in whole["rounds"] if one["opened_s"] is not None]
    tokens = versions[-1]["merged_tokens"] if versions else 0
    took_s = (versions[-1]["at_s"] or 0.0) - min(begun) if versions and begun else 0.0
    overheads = whole["audit"]["overheads"]
    wall = sum(one["wall"] for one in overheads)
    granted = whole["audit"]["blocks_granted"]
    return {
        "audit_ok": whole["audit"]["ok"],
        "version": view.run().version,
        "tokens": tokens,
        "target_tokens": goal(view.config(), view.index()).tokens if view.exists() else None,
        "share": _share(view),
        "loss": losses[-1] if losses else None,
        "first_loss": losses[0] if losses else None,
        "perplexity": evaluations[-1]["perplexity"] if evaluations else None,
        "first_perplexity": evaluations[0]["perplexity"] if len(evaluations) > 1 else None,
        "tokens_per_s": tokens / took_s if took_s > 0 else None,
        "stall": sum(one["stall"] for one in overheads) / wall if wall > 0 else None,
        "sites": len(whole["sites"]),
        "lives": len(whole["lives"]),
        "departures": len(whole["audit"]["departures"]),
        "reclaimed_share": whole["audit"]["blocks_reclaimed"] / granted if granted else 0.0,
        "refused_deltas": sum(one["refused_deltas"] for one in whole["sites"]),
        "stored_bytes": sum(whole["bytes"][name] for name in ("deltas", "updates", "snapshots")),
    }


def _share(view: View) -> float | None:
    if not view.exists():
        return None
    run = view.run()
    return share_done(view.config(), view.index(), run.version, run.merged_tokens, 0)
