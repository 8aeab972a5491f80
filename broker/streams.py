"""The two streams of a run: their names, their configuration, and whether it still stands.

Denying deletion does not stop an update of the configuration or the deletion of a stream; so the
fields that promises rest on are compared every time a stream is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.api import ask, persist, stream_info
from broker.errors import NO_STREAM, ApiError, BrokerUnfit
from broker.link import Link
from broker.roles import stream
from eventlog.errors import AtollError, LogUnavailable, RunUnknown
from eventlog.log import NAME

Config = dict[str, Any]
_PREFIX = "ATOLL_"
_BLOBS, _MIRROR = "_BLOBS", "_MIRROR"
_OPEN_S = 10.0

# Without limits that discard, and with the shortest window of deduplication by message id, which
# is not used: equal ids of two writers would make one's event vanish.
_COMMON: Config = {
    "retention": "limits",
    "storage": "file",
    "discard": "new",
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msg_size": -1,
    "duplicate_window": 100_000_000,
    "allow_rollup_hdrs": False,
    "allow_direct": True,
    "sealed": False,
    "allow_msg_ttl": False,
    "allow_msg_schedules": False,
    "allow_msg_counter": False,
    "mirror": None,
    "sources": None,
    "republish": None,
    "subject_transform": None,
}


def log_stream(run: str) -> str:
    """The name of a run's stream of events. Raises ValueError where `run` is no name."""
    if not NAME.match(run):
        raise ValueError(f"{run!r} is no name of a run: lower-case letters, digits and dashes")
    return stream(run)


def blob_stream(run: str) -> str:
    """The name of a run's stream of blobs."""
    return log_stream(run) + _BLOBS


def log_config(run: str) -> Config:
    """The configuration of the stream of events: nothing in it can be removed or replaced."""
    return _COMMON | {
        "name": log_stream(run),
        "subjects": [f"atoll.{run}.ev.>"],
        "max_msgs_per_subject": -1,
        "discard_new_per_subject": False,
        "deny_delete": True,
        "deny_purge": True,
        "allow_atomic": True,
    }


def blob_config(run: str) -> Config:
    """The configuration of the stream of blobs: released blobs are purged by subject, and what
    stands on a subject is replaced by nobody."""
    return _COMMON | {
        "name": blob_stream(run),
        "subjects": [f"atoll.{run}.blob.>"],
        "max_msgs_per_subject": 1,
        "discard_new_per_subject": True,
        "deny_delete": False,
        "deny_purge": False,
    }


def mirror_stream(run: str) -> str:
    """The name of the stream that holds a second copy of a run's events."""
    return log_stream(run) + _MIRROR


def mirror_config(run: str) -> Config:
    """The configuration of a second copy: whatever the first holds, under its sequences and
    times, and nothing else. It deduplicates nothing, and after a restart the server says so."""
    common = {key: value for key, value in _COMMON.items() if key != "duplicate_window"}
    return common | {
        "name": mirror_stream(run),
        "subjects": None,
        "mirror": {"name": log_stream(run)},
        "max_msgs_per_subject": -1,
        "discard_new_per_subject": False,
        "deny_delete": True,
        "deny_purge": True,
    }


async def create_stream(
    link: Link, config: Config, num_replicas: int = 1, tags: Sequence[str] = ()
) -> None:
    """Make a stream; one that is there with the same configuration is left as it is. `tags`: of
    the servers of a cluster that may hold it.

    Raises BrokerUnfit where it is there with another one, LogUnavailable.
    """
    name = config["name"]
    body = {key: value for key, value in config.items() if value is not None}
    body["num_replicas"] = num_replicas
    if tags:
        body["placement"] = {"tags": list(tags)}
    try:
        answer = await persist(
            lambda: _ask_once(link, f"STREAM.CREATE.{name}", body),
            _OPEN_S,
            LogUnavailable,
            f"stream {name} cannot be made",
        )
    except _Refused as error:
        raise BrokerUnfit(f"the broker does not make stream {name}: {error}") from error
    check_config(answer["config"], config)


async def open_stream(link: Link, config: Config, run: str) -> dict[str, Any]:
    """The stream's info, its configuration checked.

    Raises RunUnknown where it does not exist, BrokerUnfit on drift, LogUnavailable.
    """
    name = config["name"]
    try:
        info = await persist(
            lambda: stream_info(link, name),
            _OPEN_S,
            LogUnavailable,
            f"stream {name} cannot be opened",
        )
    except ApiError as error:
        if error.err_code != NO_STREAM:
            raise
        raise RunUnknown(
            f"the broker has no run {run!r} (stream {name}); `atoll run list` shows those it has, "
            "`atoll run create` makes one"
        ) from error
    check_config(info["config"], config)
    return info


def check_config(actual: Mapping[str, Any], wanted: Config) -> None:
    """Raises BrokerUnfit naming the first field that has drifted."""
    for field, value in wanted.items():
        # The server leaves out what is false, nought or empty.
        found = actual.get(field, None if value is None else type(value)())
        if found != value:
            raise BrokerUnfit(
                f"stream {wanted['name']} has {field} = {found!r} where the log needs {value!r}: "
                "somebody changed its configuration; set it back before anything is written"
            )


async def run_names(link: Link) -> list[str]:
    """Names of all runs the broker holds, sorted. Raises LogUnavailable."""
    names: list[str] = []
    while True:
        body = {"offset": len(names)}
        page = await persist(
            lambda body=body: ask(link, "STREAM.NAMES", body),  # type: ignore[misc]
            _OPEN_S,
            LogUnavailable,
            "the runs cannot be listed",
        )
        streams = page.get("streams") or []
        names += streams
        if not streams or len(names) >= page["total"]:
            break
    found = (n.removeprefix(_PREFIX) for n in names if n.startswith(_PREFIX))
    return sorted(name.lower() for name in found if not name.endswith((_BLOBS, _MIRROR)))


class _Refused(AtollError):
    """An API error that passes through `persist`."""


async def _ask_once(link: Link, subject: str, body: Config) -> dict[str, Any]:
    try:
        return await ask(link, subject, body)
    except ApiError as error:
        if error.code >= 500:
            raise
        raise _Refused(str(error)) from error
