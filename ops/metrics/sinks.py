"""Thin sinks of metrics: a JSONL file, TensorBoard's event files, a wandb run kept offline.

Each is rewritten from the log's beginning: the log is the truth, and a sink that was interrupted is
made whole by making it again. None talks to a network.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Protocol, TextIO

from eventlog.errors import AtollError
from leases.metrics import Metric


class SinkMissing(AtollError):
    """What a sink needs is not installed."""


class Sink(Protocol):
    """Takes points in the log's order."""

    def put(self, metric: Metric) -> None:
        """One point more."""

    def flush(self) -> None:
        """What was put is to be seen by others."""

    def close(self) -> None:
        """Nothing more comes."""


class Jsonl:
    """One object a line: name, value, step, time (Unix seconds)."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("w", encoding="utf-8")

    def put(self, metric: Metric) -> None:
        found = {"name": metric.name, "value": metric.value, "step": metric.step}
        self._file.write(json.dumps({**found, "time": metric.time_s}) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Scalars in an event file of `folder`, whose older event files go. It uses the writer of the
    package tensorboard itself, which torch's SummaryWriter wraps: so no torch is loaded."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise SinkMissing(
                "--tensorboard needs tensorboard: install the extra (pip install "
                "atoll[tensorboard])"
            ) from error
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._events, self._summaries = event_pb2, summary_pb2
        self._writer = EventFileWriter(str(folder))

    def put(self, metric: Metric) -> None:
        value = self._summaries.Summary.Value(tag=metric.name, simple_value=metric.value)
        summary = self._summaries.Summary(value=[value])
        event = self._events.Event(wall_time=metric.time_s, step=metric.step, summary=summary)
        self._writer.add_event(event)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """An offline run of wandb in `folder`, to be sent on with `wandb sync` by whoever wants to. Its
    own step only ever rises, so ours is a metric, `step`, which every curve is drawn over."""

    def __init__(self, folder: Path, run: str, config: dict[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise SinkMissing(
                "--wandb needs wandb: install the extra (pip install atoll[wandb])"
            ) from error
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            silent=True, console="off", x_disable_stats=True, x_disable_meta=True
        )
        self._run = wandb.init(
            mode="offline", dir=str(folder), project="atoll", name=run, config=config,
            settings=settings,
        )  # fmt: skip
        self._run.define_metric("*", step_metric="step")
        self._row: dict[str, float] = {}

    def put(self, metric: Metric) -> None:
        if self._row.get("step") != metric.step or metric.name in self._row:
            self._log()
            self._row = {"step": metric.step, "_timestamp": metric.time_s or time.time()}
        self._row[metric.name] = metric.value

    def flush(self) -> None:
        """wandb writes behind our back; a row that is still open waits for its rest."""

    def close(self) -> None:
        self._log()
        self._run.finish()

    def _log(self) -> None:
        if self._row:
            self._run.log(self._row)
        self._row = {}
