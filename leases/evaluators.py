"""Which site evaluates a version within the run, and what evaluations have said: pure.

Every hub computes the turn alike, for it rests on the coordinator's decisions alone, which all of
them fold (R16): of the incarnations that lived from the opening of a version's round to its commit,
by site name, the next one each time. Where there is none, all that lived at the commit take turns.
"""

from __future__ import annotations

from typing import NamedTuple

from leases.view import View

_FROM_OPENING_TO_COMMIT = (
    "SELECT seq FROM incarnations WHERE seq < ? "
    "AND (departed_seq IS NULL OR departed_seq > ?) ORDER BY site"
)


class Evaluated(NamedTuple):
    """What an evaluation has said of a version; loss in nats per token, inf where it is no number.
    `source`: the subject of who measured it; `tokens`: merged into the version by its own run;
    `sequence`: of the event that says so."""

    version: int
    source: str
    loss: float
    perplexity: float
    bits_per_byte: float
    num_tokens: int
    tokens: int
    sequence: int


def evaluator(view: View, version: int) -> int | None:
    """The incarnation (its sequence) whose turn it is to evaluate a committed version; None where
    that version is not to be evaluated, or nobody lived."""
    every = view.config().evaluation.every_rounds
    row = view.version(version)
    if not every or version % every or row is None:
        return None
    opened = view.ask("SELECT seq FROM rounds WHERE round = ?", row.round)
    for since in (opened[0][0], row.seq) if opened else (row.seq,):
        if lived := view.ask(_FROM_OPENING_TO_COMMIT, since, row.seq):
            return int(lived[(version // every - 1) % len(lived)][0])
    return None


def evaluations(view: View, limit: int = -1) -> list[Evaluated]:
    """The newest evaluations, at most `limit` of them (-1: all), in the order of the log."""
    rows = view.ask(
        "SELECT e.version, e.source, e.loss, e.perplexity, e.bits_per_byte, e.num_tokens, "
        "coalesce(v.merged_tokens, 0), e.seq "
        "FROM evaluations e LEFT JOIN versions v USING (version) "
        "ORDER BY e.seq DESC LIMIT ?",
        limit,
    )
    return [Evaluated(*row) for row in reversed(rows)]
