"""Whether the broker lets these credentials do their part and nothing else, as a finding."""

from __future__ import annotations

from broker.connection import Connection
from broker.selftest import selftest
from ops.doctor.findings import Finding

_SHOWN = 3
_WHY = "who may do less stops at its first delta; who may do more can speak for others"


async def permitted(connection: Connection, run: str | None) -> Finding:
    """By trying, in ways that change nothing. Raises LinkDown where the link breaks meanwhile."""
    if connection.identity is None:
        what = "this broker lets in whoever reaches it, and lets everybody do everything"
        todo = "on a machine of one's own that may be; else `atoll broker config` (docs/deploy.md)"
        return Finding("permissions", "note", what, _WHY, todo)
    label = connection.identity.user.label
    if run is None:
        what = f"what {label} may do is tried on a run: name one"
        return Finding("permissions", "note", what, _WHY, "atoll doctor RUN")
    tried = await selftest(connection, run)
    measured = {"tried": tried.num, "refused": tried.refused, "allowed": tried.allowed}
    if tried.good:
        what = f"{label} may do its part in run {run} and nothing of others', by {tried.num} tries"
        return Finding("permissions", "good", what, _WHY, "", measured)
    parts = []
    if tried.refused:
        parts.append(f"is not let do its part ({_listed(tried.refused)})")
    if tried.allowed:
        parts.append(f"may do what is not its part ({_listed(tried.allowed)})")
    todo = "have the broker's operator run `atoll broker config` and `broker reload`, and look at "
    todo += "the runs that these credentials are for (docs/security.md has who may what)"
    return Finding("permissions", "bad", f"{label} {'; and '.join(parts)}", _WHY, todo, measured)


def _listed(subjects: tuple[str, ...]) -> str:
    more = f" and {len(subjects) - _SHOWN} more" if len(subjects) > _SHOWN else ""
    return ", ".join(subjects[:_SHOWN]) + more
