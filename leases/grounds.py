"""The state that a decision stands on, and what the audit finds wrong with the decision."""

from __future__ import annotations

from dataclasses import dataclass

from eventlog.events import OPERATOR, SITE
from leases.view import View


@dataclass(frozen=True, slots=True)
class Finding:
    """What a decision lacks, and what should have been."""

    promise: str
    rule: str
    what: str
    expected: str
    site: str = ""
    block: str = ""

    def concerns(self) -> tuple[str, str, str]:
        """What should have been, and for which site and block."""
        return self.expected, self.site, self.block


@dataclass(slots=True)
class Standing:
    """The state before a decision. `folded`: how far the coordinator had read at least."""

    view: View
    folded: int

    def spoke(self, *subjects: str) -> bool:
        """Whether one of these said something that the coordinator need not have read."""
        sql = "SELECT 1 FROM audit_spoke WHERE subject = ? AND last > ?"
        return any(self.view.db.execute(sql, (one, self.folded)).fetchone() for one in subjects)

    def unread(self, site: str) -> bool:
        """As `spoke`, of a site or the operator."""
        return self.spoke(f"{SITE}.{site}", OPERATOR)
