"""The model card of an exported version: facts from the log, and what its audit says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leases.findings import Findings
from leases.view import View

if TYPE_CHECKING:
    from sitehub.corpus import Corpus


def facts_of(view: View, version: int, found: Findings, corpus: Corpus) -> dict[str, Any]:
    """What the log says of a version, and the verdict of an audit."""
    run, config, row = view.run(), view.config(), view.version(version)
    sites = view.ask("SELECT site, count(*) FROM incarnations GROUP BY site ORDER BY site")
    return {
        "run": run.name,
        "version": version,
        "num_parameters": run.num_parameters,
        "tokens": row.merged_tokens if row else 0,
        "lineage": found.lineage.model_dump(mode="json") if found.lineage else None,
        "epoch_tokens": view.index().epoch_tokens,
        "parameters_digest": row.parameters_digest if row else run.initial_digest,
        "manifest_digest": view.manifest_digest(),
        "log_digest": found.log_digest,
        "log_sequence": found.last_sequence,
        "audit": _verdict(found),
        "audit_ok": found.ok,
        "sites": {site: incarnations for site, incarnations in sites},
        "evaluation": _evaluation(view, version),
        "sources": [entry.label for entry in corpus.manifest.sources],
        "model": config.model,
        "inner": config.inner.model_dump(mode="json"),
        "outer": config.outer.model_dump(mode="json"),
    }


def _verdict(found: Findings) -> str:
    if found.ok:
        return f"the audit of {found.events:,} events found no violation"
    first = found.violations[0]
    num = len(found.violations)
    return (
        f"the audit of {found.events:,} events found {num} violation{'s' * (num != 1)}, the first "
        f"of {first.promise} ({first.rule}) at sequence {first.sequence}: {first.what}"
    )


def _evaluation(view: View, version: int) -> dict[str, Any] | None:
    """The newest evaluation of the version that is in the log."""
    rows = view.ask(
        "SELECT loss, perplexity, bits_per_byte, num_tokens FROM evaluations WHERE version = ? "
        "ORDER BY num_tokens DESC, seq DESC LIMIT 1",
        version,
    )
    names = ("loss", "perplexity", "bits_per_byte", "num_tokens")
    return dict(zip(names, rows[0], strict=True)) if rows else None


def _trained(facts: dict[str, Any]) -> str:
    """Of a fork, those of its parents are in the model too."""
    own, come = facts["tokens"], facts["lineage"]
    total = f"{own + come['tokens']:,}, {own:,} of them in this run" if come else f"{own:,}"
    return f"{total}; an epoch of its data has {facts['epoch_tokens']:,}"


def _origin(come: dict[str, Any] | None) -> list[tuple[str, str]]:
    if come is None:
        return []
    digest = come["parameters_digest"]
    return [("forked from", f"{come['run']}, version {come['version']} (parameters `{digest}`)")]


def model_card(facts: dict[str, Any]) -> str:
    """Markdown, headed by what a model hub reads."""
    found, sites = facts["evaluation"], facts["sites"]
    measured = "not evaluated in the run"
    if found is not None:
        measured = (
            f"held-out loss {found['loss']:.4f} nats, perplexity {found['perplexity']:.2f}, "
            f"{found['bits_per_byte']:.3f} bits per byte, over {found['num_tokens']:,} tokens"
        )
    who = ", ".join(f"{site} ({num})" for site, num in sites.items()) or "none"
    rows = [
        ("run and version", f"{facts['run']}, version {facts['version']}"),
        *_origin(facts["lineage"]),
        ("parameters", f"{facts['num_parameters']:,}"),
        ("tokens trained", _trained(facts)),
        ("quality", measured),
        ("audit", facts["audit"]),
        ("sites (incarnations)", who),
        ("digest of the parameters", f"`{facts['parameters_digest']}`"),
        ("digest of the data manifest", f"`{facts['manifest_digest']}`"),
        ("digest of the log", f"`{facts['log_digest']}`, through {facts['log_sequence']}"),
    ]
    settings = {key: facts[key] for key in ("model", "inner", "outer", "sources")}
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "pipeline_tag: text-generation",
            "tags: [atoll, diloco]",
            "---",
            "",
            f"# {facts['run']}",
            "",
            "A causal language model, pre-trained by atoll over independent sites (DiLoCo). Its "
            "parameters are",
            "those of the version named here, bit for bit: whoever holds the run's log and blobs "
            "can derive them",
            "again with `atoll audit --deep`.",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {name} | {value} |" for name, value in rows),
            "",
            "## How it was trained",
            "",
            "```json",
            json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False),
            "```",
            "",
        ]
    )
