"""Signed events: what a source's key says of an event, and the anchor that a finished run leaves.

An event's signature covers its whole canonical payload, and with that the run, the subject, the
source's counter n and the previous decision: none can be moved, renumbered or reused. It stands in
the payload beside them, under a name that a reader who knows nothing of signatures passes over.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from eventlog.blobs import is_digest
from eventlog.chain import Record
from eventlog.codec import bounded, decode, pack, read_wire, unpack
from eventlog.errors import AtollError, EventInvalid
from eventlog.events import (
    DeltaPublished,
    Event,
    KeysNamed,
    RoundCommitted,
    RunCreated,
    RunFinished,
)
from eventlog.keys import Key, verifies
from eventlog.log import NAME

SIGNED: frozenset[type[Event]] = frozenset(
    {RunCreated, KeysNamed, DeltaPublished, RoundCommitted, RunFinished}
)
UNSIGNED = "its signature"  # begins every word on a signature that does not hold
_TAG = b"atoll event 1\n"
_FIELD = "sig"
_THROUGH = re.compile(r"[0-9]{1,19}\Z")


class AnchorInvalid(AtollError):
    """A text is no anchor of a run, or one that its own signature contradicts."""


def seal(payload: bytes, key: Key) -> bytes:
    """The payload of `codec.encode` with its signature."""
    return pack({**unpack(payload), _FIELD: key.sign(_TAG + payload)})


def fault(payload: bytes, keys: Iterable[str]) -> str:
    """'' where one of the public `keys` signed this payload, else what is wrong with that."""
    try:
        wire = bounded(read_wire(payload))
        signature = wire.pop(_FIELD, None)
    except EventInvalid:
        return f"{UNSIGNED} cannot be read"
    if signature is None:
        return f"{UNSIGNED} is missing"
    body = _TAG + pack(wire)
    if isinstance(signature, bytes) and any(verifies(key, body, signature) for key in keys):
        return ""
    return f"{UNSIGNED} is of no key that the operator named"


@dataclass(frozen=True, slots=True)
class Anchor:
    """What to publish of a run: D(through) of its log (hex), and who vouches for it.

    key, payload: the coordinator's public key and its signed RunFinished that says so; both empty
    where somebody noted a digest by hand.
    """

    run: str
    through: int
    log_digest: str
    key: str = ""
    payload: bytes = b""

    @classmethod
    def of(cls, run: str, record: Record, key: str) -> Anchor:
        """From a run's last decision. Raises AnchorInvalid where it is none, or not signed so."""
        entry = decode(record)
        event = entry.event
        if not isinstance(event, RunFinished) or event.through is None or not event.log_digest:
            raise AnchorInvalid(f"run {run}: event {record.sequence} holds no anchor")
        if entry.envelope is None or entry.envelope.run != run:
            raise AnchorInvalid(f"event {record.sequence} is none of run {run}")
        if why := fault(record.payload, [key]):
            raise AnchorInvalid(f"run {run}: the anchor's event: {why}")
        return cls(run, event.through, event.log_digest, key, record.payload)

    @classmethod
    def parse(cls, text: str) -> Anchor:
        """What `text` gives as one line, or RUN:SEQUENCE:DIGEST. Raises AnchorInvalid, also where
        the anchor is not what its signed event says."""
        try:
            if not text.lstrip().startswith("{"):
                run, through, digest = text.strip().split(":")
                if not (NAME.match(run) and _THROUGH.match(through) and is_digest(digest)):
                    raise ValueError("not RUN:SEQUENCE:DIGEST")
                return cls(run, int(through), digest)
            wire = json.loads(text)
            payload = base64.b64decode(wire["event"], validate=True)
            anchor = cls.of(wire["run"], Record(0, "coordinator", 0, payload), wire["key"])
            said = cls(wire["run"], wire["through"], wire["log_digest"], wire["key"], payload)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise AnchorInvalid(
                "it is no anchor: what `atoll log anchor` printed, or RUN:SEQUENCE:DIGEST"
            ) from error
        if anchor != said:
            raise AnchorInvalid("the anchor differs from the signed event within it: it is forged")
        return anchor

    def text(self) -> str:
        """One line to publish."""
        return json.dumps(
            {
                "run": self.run,
                "through": self.through,
                "log_digest": self.log_digest,
                "key": self.key,
                "event": base64.b64encode(self.payload).decode(),
            }
        )
