"""The life of a block: the one table that says which move is legal in which state.

    available ─grant▶ leased ─start▶ training ─complete▶ trained ─deliver▶ delivered ─merge▶ merged

Steal and reclaim lead back to available, a refused delta too; quarantine ends a block that no site
can train. Whatever is not in MOVES is void (R1). docs/states.svg is drawn from it.
"""

from __future__ import annotations

AVAILABLE, LEASED, TRAINING, TRAINED = "available", "leased", "training", "trained"
DELIVERED, MERGED, QUARANTINED = "delivered", "merged", "quarantined"

MOVES: dict[tuple[str, str], str] = {
    (AVAILABLE, "grant"): LEASED,
    (LEASED, "start"): TRAINING,
    (TRAINING, "complete"): TRAINED,
    (TRAINED, "deliver"): DELIVERED,
    (DELIVERED, "merge"): MERGED,
    (LEASED, "steal"): AVAILABLE,
    (LEASED, "reclaim"): AVAILABLE,
    (TRAINING, "reclaim"): AVAILABLE,
    (TRAINED, "reclaim"): AVAILABLE,
    (DELIVERED, "refuse"): AVAILABLE,
    (AVAILABLE, "quarantine"): QUARANTINED,
}

UNDELIVERED = (LEASED, TRAINING, TRAINED)  # held by an incarnation
OUTSTANDING = (*UNDELIVERED, DELIVERED)  # on the way to a merge
FINAL = (MERGED, QUARANTINED)
IN_PART = "in part: "  # how the fold's word begins where only some blocks of an event are void


def is_void(said: str) -> bool:
    """Whether the fold's word on an event means that nothing of it took effect."""
    return bool(said) and not said.startswith(IN_PART)
