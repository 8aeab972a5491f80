"""Exit codes of the command line, and which error means which.

Errors are looked up by class name along their ancestry, so that knowing them imports nothing; a
test proves that each name exists and that no error of any room is left to the default.
"""

from __future__ import annotations

from eventlog.errors import AtollError

GOOD = 0
VIOLATION = 1  # an audit or a check found one
USAGE = 2  # wrong arguments, unknown run
INVALID = 3  # invalid configuration, damaged data
UNREACHABLE = 4  # the broker does not answer
REFUSED = 6  # by the run, for good: a batch script must not requeue
TEMPORARY = 75  # lock held, twin, back-off: a batch script may requeue (EX_TEMPFAIL)
INTERRUPTED = 130  # by the user, as a shell reports SIGINT

MEANING = {
    GOOD: "good",
    VIOLATION: "an audit or check found a violation",
    USAGE: "usage, unknown run",
    INVALID: "invalid configuration or damaged data",
    UNREACHABLE: "broker unreachable",
    REFUSED: "refused for good: manifest, version, arithmetic, credentials (do not requeue)",
    TEMPORARY: "temporary: lock held, twin, back-off (a batch script may requeue)",
    INTERRUPTED: "interrupted",
}

CODES = {
    "AtollError": INVALID,
    "AnchorInvalid": INVALID,
    "LogError": INVALID,
    "RunUnknown": USAGE,
    "Conflict": TEMPORARY,
    "LogUnavailable": UNREACHABLE,
    "LogDamaged": INVALID,
    "EventInvalid": INVALID,
    "BlobError": INVALID,
    "BlobMissing": INVALID,
    "BlobDamaged": INVALID,
    "BlobTooLarge": INVALID,
    "BlobUnavailable": UNREACHABLE,
    "AccessMissing": INVALID,
    "LockHeld": TEMPORARY,
    "BrokerUrlInvalid": USAGE,
    "BrokerUnreachable": UNREACHABLE,
    "BrokerUnfit": INVALID,
    "CredentialsInvalid": INVALID,
    "DeploymentInvalid": INVALID,
    "KeyInvalid": INVALID,
    "Refused": REFUSED,
    "LinkDown": UNREACHABLE,
    "AnotherHistory": INVALID,
    "AgentTwin": TEMPORARY,
    "ArithmeticDiffers": INVALID,
    "ConfigInvalid": INVALID,
    "DataInvalid": INVALID,
    "BaselineInvalid": INVALID,
    "BaselineUnreadable": INVALID,
    "BundleInvalid": INVALID,
    "BenchFailed": VIOLATION,
    "DemoFailed": VIOLATION,
    "DeltaInvalid": INVALID,
    "ExportInvalid": USAGE,
    "EndpointFailed": INVALID,
    "ExtraMissing": INVALID,
    "FileTrouble": INVALID,
    "HomeUnfit": INVALID,
    "ModelInvalid": INVALID,
    "NoBlobs": USAGE,
    "NoJob": USAGE,
    "NonFinite": INVALID,
    "NotFinished": USAGE,
    "NotLoaded": INVALID,
    "PeerMissing": INVALID,
    "StudyInvalid": INVALID,
    "RanksInvalid": INVALID,
    "RequestVoid": USAGE,
    "RunExists": USAGE,
    "ScenarioInvalid": USAGE,
    "SinkMissing": INVALID,
    "SitesInvalid": INVALID,
    "SnapshotInvalid": INVALID,
    "SpawnFailed": INVALID,
    "StateLost": INVALID,
    "StateUnfit": INVALID,
    "TensorFileInvalid": INVALID,
    "TraceInvalid": INVALID,
    "VersionDiffers": INVALID,
    "WireInvalid": INVALID,
}


def code_of(error: AtollError) -> int:
    """The exit code of an operating error: that of its nearest ancestor with one."""
    for kind in type(error).__mro__:
        if kind.__name__ in CODES:
            return CODES[kind.__name__]
    return INVALID
