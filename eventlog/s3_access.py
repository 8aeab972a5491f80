"""What a process needs for object storage: who it is there, and where that is.

The library finds keys in the environment and the machine's role by itself. Where there is neither
it asks for a role for minutes, and then names an address that nobody has heard of; profiles it does
not read. So both are looked at here first.
"""

from __future__ import annotations

import configparser
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from eventlog.errors import AtollError

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
TRUE = ("1", "true", "yes", "on", "y", "t")
# of a job at a cluster's own web identity, or in a container that is given a role
ROLES = (
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
)
_METADATA = "http://169.254.169.254"  # of machines of Amazon's, and of who imitates them
_ANSWER_S = 1.0
_OPTIONS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}


class AccessMissing(AtollError):
    """Object storage cannot be used as this process is set up; the text says what to set."""


def access(
    environment: Mapping[str, str], url: str, has_role: Callable[[], bool] | None = None
) -> dict[str, str]:
    """What the library is to be told beside the environment, which it reads itself: the keys of a
    profile, its region and endpoint. `has_role`: whether the machine has a role, asked where
    nothing else is found. Raises AccessMissing with the names of what is missing and no value."""
    given = {name: value for name, value in environment.items() if value}
    options = _of_profile(given, url) if _wants_profile(given, url) else {}
    if "AWS_ENDPOINT_URL" in given:
        options.pop("endpoint", None)
    if "AWS_REGION" in given or "AWS_DEFAULT_REGION" in given:
        options.pop("region", None)
    _check_endpoint(given.get("AWS_ENDPOINT_URL") or options.get("endpoint", ""), url)
    if _signs(given) or "access_key_id" in options:
        return options
    if not (machine_has_role(given) if has_role is None else has_role()):
        raise AccessMissing(
            f"the blobs at {url} need credentials, and there are none here: set "
            f"{KEYS[0]} and {KEYS[1]}, or AWS_PROFILE to a profile with keys in "
            "~/.aws/credentials, and AWS_ENDPOINT_URL where the storage is not Amazon's"
        )
    return options


def _wants_profile(given: Mapping[str, str], url: str) -> bool:
    """Whether keys are looked for in a profile. Raises AccessMissing for half a pair of keys."""
    for name, other in (KEYS, KEYS[::-1]):
        if name in given and other not in given:
            raise AccessMissing(f"the blobs at {url}: {name} is set, {other} is not; set both")
    return KEYS[0] not in given and ("AWS_PROFILE" in given or not _signs(given))


def _signs(given: Mapping[str, str]) -> bool:
    """Whether the library finds in the environment who it is, or that it need not say."""
    if given.get("AWS_SKIP_SIGNATURE", "").lower() in TRUE:
        return True
    return any(all(name in given for name in names) for names in (KEYS, *ROLES))


def _check_endpoint(endpoint: str, url: str) -> None:
    place = urlsplit(endpoint)
    if endpoint and (place.scheme not in ("http", "https") or not place.hostname):
        raise AccessMissing(
            f"the blobs at {url}: AWS_ENDPOINT_URL, or endpoint_url of a profile, is no address "
            "of object storage; write https://HOST, or leave it out for Amazon's"
        )


def machine_has_role(environment: Mapping[str, str]) -> bool:
    """Whether the machine's own metadata service, asked for a second or two, names a role."""
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() in TRUE:
        return False
    base = environment.get("AWS_METADATA_ENDPOINT", _METADATA).rstrip("/")
    try:
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = _asked(f"{base}/latest/api/token", "PUT", lifetime)
        path = "/latest/meta-data/iam/security-credentials/"
        return bool(_asked(base + path, "GET", {"X-aws-ec2-metadata-token": token}).strip())
    except (OSError, ValueError):
        return False


def _asked(url: str, method: str, headers: dict[str, str]) -> str:
    request = urllib.request.Request(url, method=method, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on the machine
    with opener.open(request, timeout=_ANSWER_S) as answer:
        return str(answer.read(1 << 16).decode())


def _of_profile(given: Mapping[str, str], url: str) -> dict[str, str]:
    """The options of the profile that is named, or of the one called default; {} where that has no
    keys. Raises AccessMissing for a named one without."""
    home = Path(given.get("HOME") or Path.home()) / ".aws"
    config = given.get("AWS_CONFIG_FILE") or home / "config"
    credentials = given.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"
    name = given.get("AWS_PROFILE", "default")
    values: dict[str, str] = {}
    for path, section in ((config, f"profile {name}"), (config, name), (credentials, name)):
        values |= _section(Path(path).expanduser(), section)
    options = {option: values[key] for key, option in _OPTIONS.items() if values.get(key)}
    if {"access_key_id", "secret_access_key"} <= options.keys():
        return options
    if "AWS_PROFILE" not in given:
        return {}
    raise AccessMissing(
        f"the blobs at {url}: the profile {name!r} (AWS_PROFILE) has no keys in {credentials}; "
        "where it signs on or takes a role, export what `aws configure export-credentials "
        f"--profile {name} --format env` prints"
    )


def _section(path: Path, section: str) -> dict[str, str]:
    """A section of one of the files that `aws configure` writes; {} where there is none."""
    parser = configparser.RawConfigParser(default_section="")
    try:
        parser.read_string(path.read_text())
    except (OSError, configparser.Error, UnicodeDecodeError):
        return {}
    return dict(parser.items(section)) if parser.has_section(section) else {}
