"""What cannot work is refused in one clear line, with the right exit code, and nothing written."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from eventlog.events import SiteJoined, SiteRefused
from tests.support.fleet import Answer, Fleet
from tests.support.server import Served


def _refused(answer: Answer, code: int, *words: str) -> None:
    """One line on stderr that says these words, and this exit code."""
    assert answer.code == code, answer
    lines = answer.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("atoll: "), answer.err
    for word in words:
        assert word in lines[0], (word, answer.err)
    assert "Traceback" not in answer.err
    assert answer.out == ""


def _damaged(data: Path, copy: Path) -> Path:
    """A copy of a data directory with one bit of its longest file turned."""
    shutil.copytree(data, copy)
    file = max((path for path in copy.iterdir() if path.suffix != ".json"), key=_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return copy


def _size(path: Path) -> int:
    return path.stat().st_size


async def test_no_broker_at_the_url_is_said_within_seconds(fleet: Fleet) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{probe.getsockname()[1]}"
    for arguments in (
        ("run", "list"),
        ("run", "show", fleet.run),
        ("coordinate", fleet.run),
        ("site", "run", fleet.run, "alpha", "--data", str(fleet.data)),
        ("audit", fleet.run),
    ):
        answer = await fleet.atoll(*arguments, "--broker", url, within_s=30)
        _refused(answer, 4, url, "atoll broker serve")
        assert answer.seconds < 10


async def test_a_run_that_does_not_exist(fleet: Fleet, broker: Served) -> None:
    before = broker.streams()
    for arguments in (
        ("run", "show", "nosuch"),
        ("run", "stop", "nosuch"),
        ("coordinate", "nosuch"),
        ("site", "run", "nosuch", "alpha", "--data", str(fleet.data)),
        ("audit", "nosuch"),
        ("log", "export", "nosuch"),
    ):
        _refused(await fleet.atoll(*arguments), 2, "nosuch")
    assert broker.streams() == before


FILE = "the configuration's file"  # is named where two of its values contradict each other


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("inner.step=3", ("--set inner.step: ", "unknown key", "inner.steps")),
        ("inner.steps=-3", ("--set inner.steps: ", "-3")),
        ("inner.batch_sequences=5", (FILE, "batch_sequences = 5", "block_sequences = 32")),
    ],
)
async def test_a_configuration_that_cannot_be_meant(
    fleet: Fleet, broker: Served, override: str, words: tuple[str, ...]
) -> None:
    before = broker.streams()
    answer = await fleet.atoll(
        "run", "create", str(fleet.config), "--data", str(fleet.data), "--set", override
    )
    named = (str(fleet.config) if word is FILE else word for word in words)
    _refused(answer, 3, *named)
    assert broker.streams() == before


async def test_a_data_directory_with_a_changed_byte(
    fleet: Fleet, broker: Served, tmp_path: Path
) -> None:
    bad, before = _damaged(fleet.data, tmp_path / "bad"), broker.streams()
    create = ("run", "create", str(fleet.config), "--set", "name=new")
    _refused(await fleet.atoll(*create, "--data", str(bad)), 3, str(bad))
    join = ("site", "run", fleet.run, "alpha")
    _refused(await fleet.atoll(*join, "--data", str(bad)), 3, str(bad))
    assert broker.streams() == before


async def test_a_run_of_the_name_of_another(fleet: Fleet, broker: Served) -> None:
    before = broker.streams()
    create = ("run", "create", str(fleet.config), "--data", str(fleet.data))
    answer = await fleet.atoll(*create, "--set", f"name={fleet.run}")
    _refused(answer, 2, fleet.run, "exists")
    assert broker.streams() == before


async def test_a_twin_here_a_twin_elsewhere_and_a_site_with_other_data(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.coordinate()
    fleet.site("alpha")
    await fleet.until(lambda log: log.view.live_at("alpha"), "alpha")
    alpha = ("site", "run", fleet.run, "alpha", "--data", str(fleet.data))
    _refused(await fleet.atoll(*alpha), 75, "alpha", "twin")

    answer = await fleet.atoll(*alpha, ATOLL_HOME=str(tmp_path / "another machine"))
    assert answer.code == 75, answer
    assert "a twin must wait" in answer.err.strip().splitlines()[-1]

    build = ("data", "build", str(fleet.data.parent / "text"), str(tmp_path / "other"))
    sizes = ("--vocab-size", "300", "--sequence-tokens", "32")
    assert (await fleet.atoll(*build, *sizes)).code == 0
    beta = ("site", "run", fleet.run, "beta", "--data", str(tmp_path / "other"))
    answer = await fleet.atoll(*beta)
    assert answer.code == 6, answer
    last = answer.err.strip().splitlines()[-1]
    assert "refused" in last and "manifest" in last

    after = fleet.history.last
    await fleet.until(lambda log: log.new_versions(after) >= 1, "alpha to go on")
    await fleet.finish()
    joins = [fleet.history.source(at) for at, _ in fleet.history.of(SiteJoined)]
    assert joins == ["site.alpha", "site.alpha", "site.beta"], "the twin here has written something"
    refused = [(one.site, one.code, one.final) for _, one in fleet.history.of(SiteRefused)]
    assert refused == [("alpha", "twin", False), ("beta", "manifest", True)]
    assert fleet.history.of(SiteRefused)[1][1].reason in answer.err
    assert {cut.site for _, cut in fleet.history.merged()} == {"alpha"}
