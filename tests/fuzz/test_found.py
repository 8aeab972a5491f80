"""What fuzzing and reading for it have found, each by its kind."""

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import pytest

from broker.credentials import Credentials, CredentialsInvalid
from eventlog.chain import Record
from eventlog.codec import decode, unpack
from ops import configure, describe
from ops.alarm import settings as alarms
from ops.configure import ConfigInvalid
from ops.output import print_json
from ops.placement import sites
from ops.placement.sites import SitesInvalid
from ops.placement.slurm.ends import exit_code
from ops.placement.slurm.values import count, duration_s, instant, whole
from sitehub import manifest
from sitehub.documents import DataInvalid
from tests.fuzz.logs import WIRES, packed, wire
from tests.fuzz.texts import CREDENTIALS, SITES


@pytest.mark.parametrize("text", ["²", "9" * 5000, "٣", "-" + "9" * 5000, "1" * 400])
def test_digits_that_are_no_number_of_slurms_are_unknown(text: str) -> None:
    assert whole(text) is None
    assert count(text) is None
    assert duration_s(text) is None
    assert instant(text) is None
    assert exit_code(f"{text}:0") is None


def test_an_instant_before_the_epoch_is_unknown() -> None:
    assert instant("0001-01-01T00:00:00") is None


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000, "a." * 5000 + "a = 1"])
def test_toml_that_the_library_stumbles_over_is_invalid_like_any_other(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.toml"
    path.write_text(text)
    for load, error in (
        (configure.load, ConfigInvalid),
        (sites.load, SitesInvalid),
        (alarms.load, ConfigInvalid),
    ):
        with pytest.raises(error):
            load(path)


def test_a_time_beyond_all_measure_is_a_problem_of_the_sites_file(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(SITES.decode().replace('"10m"', '"' + "9" * 400 + 'd"'))
    with pytest.raises(SitesInvalid, match="replan"):
        sites.load(path)


@pytest.mark.parametrize(
    "change",
    [{"urls": 5}, {"ca": 7}, {"ca": "x"}, {"num_replicas": "3"}, {"num_replicas": 0}, {"seed": []}],
)
def test_credentials_of_other_kinds_are_not_what_was_issued(
    change: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "atoll.creds"
    path.write_text(json.dumps({**CREDENTIALS, **change}))
    path.chmod(0o600)
    with pytest.raises(CredentialsInvalid):
        Credentials.read(path)


def test_what_only_msgpack_can_say_is_told_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    content = unpack(
        msgpack.packb({"at": msgpack.Timestamp(7), b"\xff": [msgpack.ExtType(5, b"")]})
    )
    print_json({"data": content})
    told = json.loads(capsys.readouterr().out)["data"]
    assert told["at"] == "Timestamp(seconds=7, nanoseconds=0)" and len(told) == 2


@pytest.mark.parametrize("odd", [b"\xff", msgpack.Timestamp(7), msgpack.ExtType(5, b"")])
@pytest.mark.parametrize("name", [one["type"] for one in WIRES])
def test_no_event_holds_what_json_cannot_say(
    name: str, odd: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where its content is free it is JSON's: reports and lines are made of it."""
    sound = wire(name)
    assert decode(Record(7, sound["source"], 0, packed(sound))).event is not None
    for key in sound["data"]:
        for value in ({"do": odd}, [{"do": odd}]):
            wrong = {**sound, "data": {**sound["data"], key: value}}
            read = decode(Record(7, sound["source"], 0, packed(wrong)))
            assert describe.as_line(read)
            print_json(describe.as_json(read))
            told = json.loads(capsys.readouterr().out)
            assert read.problem or "ff" not in str(told["data"].get(key)), "it held what was odd"


def test_json_without_end_is_damaged_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("[" * 100_000)
    path.chmod(0o600)
    with pytest.raises(CredentialsInvalid):
        Credentials.read(path)
    with pytest.raises(DataInvalid):
        manifest.read(path)
