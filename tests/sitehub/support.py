"""A small text, a small model, and a trainer driven over its socket as a hub would."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import Any

from eventlog.config import RunConfig
from eventlog.events import DataShape
from outer.versions import save_parameters
from sitehub.corpus import Corpus
from sitehub.model import build_model, parameters_of
from sitehub.spawn import ONE, Ranks, spawn_trainer
from sitehub.wire import Message, read_message, write_message

TABLE = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "tie_word_embeddings": True,
}
BLOCK_SEQUENCES = 16
WORDS = ("the", "log", "is", "truth", "and", "every", "state", "a", "fold", "of", "it", "so")


def write_text(directory: Path, num_files: int = 40, words_per_file: int = 150) -> Path:
    """A folder of small texts, always the same."""
    generator = random.Random(7)
    directory.mkdir(parents=True)
    for number in range(num_files):
        text = " ".join(generator.choice(WORDS) for _ in range(words_per_file))
        (directory / f"text-{number:03}.txt").write_text(text + "\n", encoding="utf-8")
    return directory


def run_config(**changes: Any) -> RunConfig:
    content: dict[str, Any] = {
        "name": "small",
        "seed": 1,
        "target": {"rounds": 2},
        "data": {"path": "data", "block_sequences": BLOCK_SEQUENCES},
        "model": TABLE,
        "inner": {"steps": 8, "batch_sequences": 8, "lr": 1e-2},
        "outer": {"lr": 1.0, "momentum": 0.0, "delta_codec": "fp32", "update_codec": "fp32"},
    }
    return RunConfig.model_validate(content | changes)


class Hub:
    """The hub's side of one trainer, in the test's own process."""

    def __init__(
        self,
        directory: Path,
        corpus: Corpus,
        config: RunConfig,
        threads: int,
        work: str,
        ranks: Ranks = ONE,
    ) -> None:
        """`work`: the trainer's folder, in `directory`, or another trainer's."""
        self.directory, self.config, self.progress = directory, config, list[Message]()
        shape = DataShape(
            manifest_digest=corpus.manifest_digest,
            num_sequences=corpus.num_sequences,
            sequence_tokens=corpus.sequence_tokens,
            block_sequences=config.data.block_sequences,
        )
        content = {"config": config.model_dump(mode="json"), "data": shape.model_dump(mode="json")}
        (directory / "run.json").write_text(json.dumps(content))
        self.socket_path = directory / "hub.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.socket_path))
        self._listener.listen(1)
        self._listener.settimeout(180 if ranks.num > 1 else 60)
        self.trainer = spawn_trainer(
            [
                *("--socket", str(self.socket_path), "--data", str(corpus.directory)),
                *("--config", str(directory / "run.json"), "--dir", str(directory / work)),
                *("--threads", str(threads)),
            ],
            directory / "trainer.log",
            {"OMP_NUM_THREADS": "1"},
            ranks,
        )
        self.sock, _ = self._listener.accept()
        self.sock.settimeout(180 if ranks.num > 1 else 60)

    def read(self) -> Message:
        message = read_message(self.sock)
        assert message is not None, (self.directory / "trainer.log").read_text()
        return message

    def ask(self, **command: Any) -> Message:
        """Send a command; the answer, reports of progress kept aside."""
        write_message(self.sock, command)
        while (message := self.read()).get("say"):
            if message["say"] == "progress":
                self.progress.append(message)
        return message

    def train(self, block: int, **more: Any) -> Message:
        ends = {"progress_from": 0.1, "progress_to": 0.2, "tag": None, "epoch": 0}
        return self.ask(do="train", block=block, **ends | more)

    def close(self) -> None:
        self.sock.close()
        self._listener.close()
        if not self.trainer.wait(10):
            self.trainer.kill()
        self.trainer.close()


def save_initial(corpus: Corpus, config: RunConfig, path: Path) -> Path:
    """The run's initial parameters, as the operator writes them."""
    model = build_model(config.model, corpus.vocab_size, config.seed)
    save_parameters(parameters_of(model), path)
    return path
