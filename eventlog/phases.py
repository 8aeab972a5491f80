"""The phases of an exchange: the one list of names under which events carry seconds.

A site's are in `VersionApplied.seconds`, of what it did since it last said so; the coordinator's in
`RoundCommitted.seconds`; how long a snapshot took is `SnapshotSaved.seconds`.
"""

from __future__ import annotations

ENCODE, UPLOAD, WAIT, DOWNLOAD, APPLY, BLOCKED, IDLE, EVALUATE = SITE = (
    "encode",  # the delta is encoded and written
    "upload",  # and stored
    "wait",  # from its announcement to its decision: for other sites, and for the merge
    "download",  # versions, or a snapshot, are fetched
    "apply",  # and computed
    "blocked",  # the trainer stood still for work of the exchange
    "idle",  # or because it had nothing to train
    "evaluate",  # or to evaluate a version
)
STALL = (BLOCKED, IDLE, EVALUATE)  # of the training thread; all else may run beside it
FETCH, MERGE, STORE = COORDINATOR = (
    "fetch",  # the deltas of the cut are fetched, as far as they were not for their verdicts
    "merge",  # they are merged, and the step is taken
    "upload",  # the update is stored
)
