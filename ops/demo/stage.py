"""Sets the demo up, plays the story to its end, and measures what came out."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.connection import connect
from broker.jetstream_blobs import JetStreamBlobs
from broker.jetstream_log import JetStreamLog
from broker.server import BrokerServer
from broker.settings import ServerSettings
from eventlog.blobs import BlobStore
from eventlog.config import RunConfig
from eventlog.events import EvaluationCompleted, RunCreated
from eventlog.log import EventLog
from eventlog.projector import Projection, run_projection
from leases.table import LeaseTable
from leases.view import View
from ops import configure, founding
from ops.demo.processes import Crew, DemoFailed, end_preload
from ops.demo.story import FIRST, KILLED, Story, told
from ops.folded import request
from ops.home import Home
from ops.logfile import export
from outer.recover import parameters_at
from sitehub import build, sources
from sitehub.corpus import Corpus, unigram
from sitehub.evaluate import Evaluation, evaluate, sample
from sitehub.founding import start
from sitehub.model import build_model, load_into
from sitehub.spawn import PRELOAD_VARIABLE, socket_folder, start_preload

CONFIG = Path(__file__).parent.parent / "configs" / "demo.toml"
SUBSET = 8  # every eighth file of the standard library: an epoch closes within the demo
LIMIT_S = 900.0
PROMPT = "def __init__(self"

Say = Callable[[str], None]
Watch = Callable[[EventLog], AsyncGenerator[None, None]]  # shows what comes; a turn now and then


@dataclass(slots=True)
class Outcome:
    """What the demo found, besides the audit's verdict."""

    created: RunCreated
    initial: Evaluation
    final: Evaluation
    perplexity_unigram: float
    text: str
    log_file: Path
    seconds: float


async def play(folder: Path, say: Say, watch: Watch) -> Outcome:
    """The whole demo in an empty folder, which then holds everything that it left.

    Raises DemoFailed, and what its parts raise.
    """
    began, home = time.monotonic(), Home(folder.absolute())
    with ExitStack() as stack:
        sockets = socket_folder("atoll-demo-")
        stack.callback(shutil.rmtree, sockets, ignore_errors=True)
        say("starting a broker, building the data, importing the libraries once for all sites")
        server = stack.enter_context(
            BrokerServer(ServerSettings(home.broker), die_with_parent=True)
        )
        preload_socket = sockets / "preload"
        preload, corpus = await asyncio.gather(
            asyncio.to_thread(start_preload, preload_socket, home.process_log("preload")),
            asyncio.to_thread(_build, folder / "data"),
        )
        stack.callback(end_preload, preload)
        say(
            f"{corpus.manifest.training.num_tokens:,} tokens of the Python standard library's "
            f"source; broker at {server.url}"
        )
        crew = Crew(
            home,
            {
                PRELOAD_VARIABLE: str(preload_socket),
                "ATOLL_BROKER": server.url,
                "TMPDIR": str(sockets),  # what killed sites leave goes with the demo
            },
        )
        stack.callback(crew.end)
        async with await connect(server.url, name="demo") as connection:
            config = configure.load(CONFIG)
            created = await founding.create(connection, *start(config, corpus), corpus)
            log = await JetStreamLog.open(connection, config.name)
            blobs = await JetStreamBlobs.open(connection, config.name)
            initial = await _evaluate(log, blobs, folder / "scratch", config, corpus, 0)
            say(
                f"{created.num_parameters:,} parameters; held-out perplexity "
                f"{initial[0].perplexity:,.0f} before training"
            )
            _begin(crew, config.name, folder / "data")
            await play_story(log, crew, folder / "data", watch, say)
            await asyncio.to_thread(crew.wait)
            version = await _version(log)
            final, text = await _evaluate(log, blobs, folder / "scratch", config, corpus, version)
            log_file = folder / f"{config.name}.atoll"
            await export(log, blobs, log_file)
            await log.close()
            await blobs.close()
    return Outcome(
        created,
        initial[0],
        final,
        unigram(corpus),
        text,
        log_file,
        time.monotonic() - began,
    )


def _build(directory: Path) -> Corpus:
    options = build.Options(subset=SUBSET)
    return build.build([sources.standard_library()], directory, options, lambda *_: None)


def _begin(crew: Crew, run: str, data: Path) -> None:
    crew.start("coordinator", ["coordinate", run])
    for name in (FIRST, KILLED):
        crew.start(name, _site(run, name, data))


def _site(run: str, name: str, data: Path) -> list[str]:
    return ["site", "run", run, name, "--data", str(data), "--threads", "1"]


async def play_story(log: EventLog, crew: Crew, data: Path, watch: Watch, say: Say) -> None:
    """Play the story while the run runs, and say what it does; ends when the run has finished."""
    story, until = Story(), time.monotonic() + LIMIT_S
    with Projection(":memory:", [LeaseTable()], log.run) as projection:
        view = View(projection.db)
        async with aclosing(watch(log)) as shown:
            async for _ in shown:
                await run_projection(projection, log)
                if (act := story.next_act(view)) is not None:
                    what, name = act
                    say(f"demo: {told(what, name)}")
                    if what == "kill":
                        crew.kill_site(log.run, name)
                    else:
                        crew.start(name, _site(log.run, name, data))
                crew.check()
                if time.monotonic() > until:
                    raise DemoFailed(
                        f"the run did not finish in {LIMIT_S:.0f} s; see {crew.home.root}"
                    )
        if not story.told:
            raise DemoFailed("the run ended before the late join and the crash could be shown")


async def _version(log: EventLog) -> int:
    with Projection(":memory:", [LeaseTable()], log.run) as projection:
        await run_projection(projection, log)
        return View(projection.db).run().version


async def _evaluate(
    log: EventLog,
    blobs: BlobStore,
    scratch: Path,
    config: RunConfig,
    corpus: Corpus,
    version: int,
) -> tuple[Evaluation, str]:
    """Held-out evaluation of a version, put into the log, and a sample of what it writes."""
    with Projection(":memory:", [LeaseTable()], log.run) as projection:
        await run_projection(projection, log)
        parameters = await parameters_at(View(projection.db), blobs, scratch, version)

    def measure() -> tuple[Evaluation, str]:
        model = build_model(config.model, corpus.vocab_size, config.seed, corpus.sequence_tokens)
        load_into(model, parameters)
        return evaluate(model, corpus), sample(model, corpus.tokenizer, PROMPT, 48, 0)

    found, text = await asyncio.to_thread(measure)
    await request(
        log,
        EvaluationCompleted(
            version=version,
            num_tokens=found.num_tokens,
            loss=found.loss,
            perplexity=found.perplexity,
            bits_per_byte=found.bits_per_byte,
        ),
    )
    return found, text


def prepare(folder: Path) -> None:
    """Raises DemoFailed where the folder holds something already."""
    with suppress(FileNotFoundError):
        if any(folder.iterdir()):
            raise DemoFailed(f"{folder} is not empty: give another folder with --dir")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["ATOLL_HOME"] = str(folder.absolute())


def counts(view: View) -> dict[str, Any]:
    """What the lease table says about the story. late_joins: incarnations admitted once a version
    was committed."""
    first = view.version(1)
    return {
        "rounds": view.run().version,
        "tokens": view.run().merged_tokens,
        "epochs_closed": sum(row["closed_seq"] is not None for row in view.epochs()),
        "sites": len(view.latest()),
        "departures": view.num_departed(),
        "late_joins": view.num_admitted_after(first.seq if first else 0),
        "blocks_reclaimed": sum(row["reclaimed"] for row in view.epochs()),
    }
