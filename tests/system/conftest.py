"""What the tests with real processes share: text, data, one broker, one preloaded parent."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sitehub.spawn import start_preload
from tests.support.fleet import Fleet
from tests.support.forkserver import ForkServer
from tests.support.server import Served
from tests.support.text import write_text
from tests.support.watched import History

_numbers = itertools.count(1)
_failed = pytest.StashKey[bool]()

CONFIG = """\
name = "set-by-the-test"
seed = 1
lease_s = 4
target = { rounds = 100_000 }
data = { block_sequences = 32 }
inner = { steps = 64, batch_sequences = 4, lr = 1e-3 }
rounds = { quorum = 1, grace_s = 5, deadline_s = 30 }
snapshots = { every_versions = 3, retention = "all" }

[model]
model_type = "qwen3"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16
max_position_embeddings = 32
tie_word_embeddings = true
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Remember failures, so that teardown can show what the processes said."""
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "run.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="session")
def parents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ForkServer]]:
    """Two parents, started side by side, that have imported what their children need: the socket
    of that of the trainers, and that of the commands."""
    folder = tmp_path_factory.mktemp("preload")
    with ThreadPoolExecutor(1) as beside:
        starting = beside.submit(start_preload, folder / "p.sock", folder / "log")
        with ForkServer(tmp_path_factory.mktemp("forks")) as server:
            process = starting.result()
            os.setpriority(os.PRIO_PROCESS, process.pid, 10)  # trainers take what others leave
            yield str(folder / "p.sock"), server
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory, parents: tuple[str, ForkServer]) -> Path:
    """Token files of a small text, built by the command."""
    folder, (_, forks) = tmp_path_factory.mktemp("data"), parents
    text, said = write_text(folder / "text"), folder / "said"
    sizes = ["--vocab-size", "320", "--sequence-tokens", "32"]
    build = ["data", "build", str(text), str(folder / "tokens"), *sizes]
    assert forks.start(build, {}, said, said).wait(60) == 0, said.read_text()
    return folder / "tokens"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker that all tests share which do not kill theirs."""
    served = Served(tmp_path_factory.mktemp("broker") / "store")
    served.start()
    yield served
    assert served.stop() == 0


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Served]:
    """A broker for one test, to be killed by it."""
    served = Served(tmp_path / "store")
    served.start()
    yield served
    served.kill()


MakeFleet = Callable[..., Awaitable[Fleet]]


@pytest.fixture
async def make_fleet(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    data: Path,
    config: Path,
    parents: tuple[str, ForkServer],
) -> AsyncIterator[MakeFleet]:
    """Makes runs: `await make_fleet(served, "key=value", ..., VARIABLE="value")`, each on a machine
    of its own, whose processes have these variables in their environment."""
    made: list[Fleet] = []
    async with AsyncExitStack() as stack:

        async def make(served: Served, *overrides: str, **variables: str) -> Fleet:
            run = f"run-{os.getpid()}-{next(_numbers)}"
            home = tmp_path / f"machine-{len(made) + 1}"
            fleet = Fleet(home, served.url, data, config, run, *parents)
            fleet.variables = variables
            fleet.own_interpreters = request.node.get_closest_marker("own_interpreters") is not None
            made.append(fleet)
            await fleet.create(*overrides)
            fleet.history = await stack.enter_async_context(History.watched(served.url, run))
            return fleet

        yield make
        for fleet in made:
            fleet.close()
        if request.node.stash.get(_failed, False):
            for fleet in made:
                print(fleet.said(60))


@pytest.fixture
async def fleet(request: pytest.FixtureRequest, make_fleet: MakeFleet) -> Fleet:
    """A run that was just created; a test that wants other settings than CONFIG's marks itself
    with `settings("key=value", ...)`."""
    name = "own_broker" if "own_broker" in request.fixturenames else "broker"
    marker = request.node.get_closest_marker("settings")
    return await make_fleet(request.getfixturevalue(name), *(marker.args if marker else ()))
