"""Who a process is to object storage: what it is told, and what is said to be missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from eventlog.s3_access import AccessMissing, access, machine_has_role

URL = "s3://bucket/prefix"
PAIR = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "geheim"}


def none() -> bool:
    return False


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with two profiles, as `aws configure` writes them."""
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        "[default]\naws_access_key_id = one\naws_secret_access_key = geheim-1\n\n"
        "[far]\naws_access_key_id = two\naws_secret_access_key = geheim-2\n"
        "aws_session_token = for-a-while\n"
    )
    (folder / "config").write_text(
        "[default]\nregion = eu-west-1\n"
        "[profile far]\nregion = eu-north-1\nendpoint_url = https://storage.example\n"
        "[profile guest]\nsso_session = somewhere\n"
    )
    return {"HOME": str(tmp_path)}


def test_without_anything_it_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(AccessMissing) as caught:
        access({"HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": ""}, URL, none)
    said = str(caught.value)
    assert said.startswith(f"the blobs at {URL} need credentials, and there are none here: set ")
    for name in (*PAIR, "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        assert name in said
    assert "\n" not in said


@pytest.mark.parametrize(("left", "other"), [tuple(PAIR), tuple(PAIR)[::-1]])
def test_half_a_pair_of_keys_names_the_other_half(home: dict[str, str], left, other) -> None:
    with pytest.raises(AccessMissing, match=f"{left} is set, {other} is not; set both") as caught:
        access({**home, left: PAIR[left]}, URL, none)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    "environment",
    [
        PAIR,
        {**PAIR, "AWS_ENDPOINT_URL": "http://10.0.0.1:9000", "AWS_PROFILE": "nosuch"},
        {"AWS_SKIP_SIGNATURE": "true"},
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"},
        {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials/1"},
    ],
)
def test_what_the_library_finds_by_itself_is_left_to_it(home: dict[str, str], environment) -> None:
    assert access({**home, **environment}, URL, none) == {}


def test_a_role_of_the_machine_is_asked_for_last(tmp_path: Path, home: dict[str, str]) -> None:
    assert access({"HOME": str(tmp_path / "empty")}, URL, lambda: True) == {}
    asked: list[bool] = []
    assert access(home, URL, lambda: asked.append(True) or True)["access_key_id"] == "one"
    assert asked == []


def test_a_profile_gives_keys_region_and_endpoint(home: dict[str, str]) -> None:
    one = {"access_key_id": "one", "secret_access_key": "geheim-1", "region": "eu-west-1"}
    assert access(home, URL, none) == one
    two = {
        "access_key_id": "two",
        "secret_access_key": "geheim-2",
        "session_token": "for-a-while",
        "region": "eu-north-1",
        "endpoint": "https://storage.example",
    }
    far = {**home, "AWS_PROFILE": "far"}
    assert access(far, URL, none) == two
    given = {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": "https://here.example"}
    del two["region"], two["endpoint"]  # the environment's, which the library reads
    assert access({**far, **given}, URL, none) == two


def test_files_named_by_the_environment_take_the_place_of_those_at_home(
    home: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("[default]\naws_access_key_id=a\naws_secret_access_key=b\n")
    named = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "mine"), "AWS_CONFIG_FILE": "/nowhere"}
    assert access({**home, **named}, URL, none) == {"access_key_id": "a", "secret_access_key": "b"}


@pytest.mark.parametrize("profile", ["guest", "nosuch"])
def test_a_named_profile_without_keys_is_refused_though_a_role_is_there(
    home: dict[str, str], profile: str
) -> None:
    with pytest.raises(AccessMissing, match=f"the profile '{profile}'") as caught:
        access({**home, "AWS_PROFILE": profile}, URL, lambda: True)
    assert f"export-credentials --profile {profile} --format env" in str(caught.value)


@pytest.mark.parametrize("endpoint", ["storage.example", "s3://x", "http://", "ftp://x"])
def test_an_endpoint_that_is_none_is_named_and_not_repeated(endpoint: str) -> None:
    with pytest.raises(AccessMissing, match="AWS_ENDPOINT_URL") as caught:
        access({**PAIR, "AWS_ENDPOINT_URL": endpoint}, URL, none)
    assert endpoint not in str(caught.value).replace(URL, "")


@pytest.fixture
def metadata() -> Iterator[dict[str, str]]:
    """The metadata service of a machine with a role; the environment that leads there."""

    class Answers(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self._say(b"token" if self.path == "/latest/api/token" else b"")

        def do_GET(self) -> None:
            right = self.headers["X-aws-ec2-metadata-token"] == "token"
            self._say(b"the-role" if right and "security-credentials" in self.path else b"")

        def _say(self, body: bytes) -> None:
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {"AWS_METADATA_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_machine_has_a_role_if_its_metadata_service_names_one(metadata: dict[str, str]) -> None:
    assert machine_has_role(metadata)
    assert not machine_has_role({**metadata, "AWS_EC2_METADATA_DISABLED": "true"})
    assert not machine_has_role({"AWS_METADATA_ENDPOINT": "http://127.0.0.1:9"})
