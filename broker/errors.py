"""What can go wrong with a broker.

AtollError
├── BrokerUrlInvalid    what was given is no URL of a broker
├── BrokerUnreachable   no broker answers at the URL
├── BrokerUnfit         a broker, or one of its streams, is not what a run needs
├── DeploymentInvalid   what was asked of a broker's configuration cannot be done
├── Refused             the broker does not let these credentials in
└── LinkDown            a connection broke or an answer stayed away: ask again (room-internal)
    └── EmptyMessage    what follows it in a stream must be asked for anew (room-internal)
ApiError                JetStream answered with an error; judged by `err_code` (room-internal)
"""

from __future__ import annotations

from eventlog.errors import AtollError


class BrokerUrlInvalid(AtollError):
    """What was given as a broker's URL is none; the text says what to write."""


class BrokerUnreachable(AtollError):
    """No broker answers at the URL that was given."""


class BrokerUnfit(AtollError):
    """The broker answers, but with it no promise of the log would hold."""


class DeploymentInvalid(AtollError):
    """What was asked of a broker's configuration cannot be done; the text says why."""


class Refused(AtollError):
    """The broker answers, and does not let in who asks: unknown or revoked credentials."""


class LinkDown(AtollError):
    """No answer came: nothing is known about a request in flight."""


class EmptyMessage(LinkDown):
    """A message without data came, behind which a broker with accounts sends nothing more."""


class ApiError(Exception):
    """An error that JetStream answered. `code` is its class as in HTTP, and too coarse to judge by:
    "full" and "temporarily unavailable" are both 503."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} (code {err_code or code})")
        self.code, self.err_code, self.description = code, err_code, description


NAME_TAKEN = 10148  # of a consumer, by one that is configured otherwise
NO_MESSAGE = 10037
NO_STREAM = 10059
WRONG_LAST_SEQUENCE = 10071
