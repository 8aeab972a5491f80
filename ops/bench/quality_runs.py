"""One training of a study of quality: sites that exchange, or the centralised baseline.

Both train a Qwen3 of 0.7 million parameters on the standard library and botocore's documentation
(40 MB, 11.7 million tokens), on blocks in the same order from the same parameters, with the code of
a real run; no sequence is trained twice.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from eventlog.config import RunConfig

SEQUENCE_TOKENS = 64
VOCAB_SIZE = 2048


@dataclass(frozen=True, slots=True)
class Setting:
    """What is trained, but for its seed. `sites` = 0: the baseline, whose `h` is 0 too and which
    has no outer step. `sequences`: trained by all together."""

    sequences: int
    sites: int
    h: int
    batch: int
    optimizer: Literal["adamw", "muon"]
    lr: float
    outer_lr: float = 1.0
    momentum: float = 0.0
    codec: str = "bf16"
    on_version: Literal["keep", "reset"] = "keep"
    delay_blocks: int = 0  # see `ops.bench.pocket.PocketRun`
    beta1: float = 0.9  # of AdamW, which with "muon" trains the embedding
    beta2: float = 0.95  # and this
    muon_momentum: float = 0.95
    adamw_share: float = 1.0  # of "muon": AdamW's rate
    weight_decay: float = 0.1
    hidden: int = 128  # the model's width, a multiple of 64
    block: int = 40  # sequences
    outer_final_lr: float = 1.0  # share of `outer_lr` that a cosine ends at; 1: it stays

    @property
    def steps(self) -> int:
        """Sequential inner steps."""
        return self.sequences // (self.batch * max(1, self.sites))

    def config(self, seed: int, compiled: bool = False) -> RunConfig:
        """The run's configuration. Raises pydantic.ValidationError."""
        from eventlog.config import RunConfig

        blocks = self.sequences // self.block
        per_round = max(1, self.sites) * max(1, round(self.h * self.batch / self.block))
        content: dict[str, Any] = {
            "name": "quality",
            "seed": seed,
            "target": {"rounds": blocks // per_round},
            "data": {"block_sequences": self.block},
            "model": self.model(),
            "inner": {
                "steps": max(1, self.h),
                "batch_sequences": self.batch,
                "optimizer": self.optimizer,
                "lr": self.lr,
                "warmup": 0.05,
                "final_lr": 0.0,
                "on_version": self.on_version,
                "beta1": self.beta1,
                "beta2": self.beta2,
                "muon_momentum": self.muon_momentum,
                "adamw_share": self.adamw_share,
                "weight_decay": self.weight_decay,
                "compile": compiled,
            },
            "outer": {
                "lr": self.outer_lr,
                "momentum": self.momentum,
                "schedule": "constant" if self.outer_final_lr == 1 else "cosine",
                "final_lr": self.outer_final_lr,
                "delta_codec": self.codec,
                "update_codec": self.codec,
            },
        }
        return RunConfig.model_validate(content)

    def model(self) -> dict[str, Any]:
        """A Qwen3 of two layers with heads of 32."""
        return {
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "intermediate_size": 3 * self.hidden,
            "num_hidden_layers": 2,
            "num_attention_heads": self.hidden // 32,
            "num_key_value_heads": self.hidden // 64,
            "head_dim": 32,
            "max_position_embeddings": SEQUENCE_TOKENS,
            "tie_word_embeddings": True,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """One training: `loss` on all held-out text, nats a token; `data`: the manifest's digest."""

    setting: Setting
    seed: int
    loss: float
    tokens: int
    seconds: float
    data: str

    def as_json(self) -> dict[str, Any]:
        """As it is recorded: one flat object."""
        own = {name: value for name, value in asdict(self).items() if name != "setting"}
        return asdict(self.setting) | own

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> Row:
        """A row as it was recorded. Raises TypeError, KeyError."""
        names = ("seed", "loss", "tokens", "seconds", "data")
        own = {name: recorded[name] for name in names}
        setting = {name: value for name, value in recorded.items() if name not in own}
        return cls(setting=Setting(**setting), **own)


def build(folder: Path, subset: int = 1) -> None:
    """Build the data; of every `subset`-th document and service with more than 1."""
    from ops.bench import english
    from sitehub import build as building
    from sitehub import sources

    options = building.Options(
        sequence_tokens=SEQUENCE_TOKENS, vocab_size=VOCAB_SIZE, subset=subset
    )
    with tempfile.TemporaryDirectory(prefix="atoll-english-") as name:
        texts = english.write(Path(name) / "botocore.jsonl", subset)
        building.build([sources.standard_library(), texts], folder, options)


def play(setting: Setting, seed: int, data: Path, compiled: bool = False) -> Row:
    """One training, in this process, with one thread. `compiled`: by torch.compile, which needs a
    C++ compiler and a minute for a process's first; the same but for rounding."""
    import torch

    from sitehub.corpus import Corpus

    torch.set_num_threads(1)
    began, corpus = time.monotonic(), Corpus.open(data)
    with tempfile.TemporaryDirectory(prefix="atoll-quality-") as folder:
        train = _sites if setting.sites else _baseline
        loss, tokens = train(setting, setting.config(seed, compiled), corpus, Path(folder))
    return Row(setting, seed, loss, tokens, time.monotonic() - began, corpus.manifest_digest)


def _sites(setting: Setting, config: RunConfig, corpus: Any, folder: Path) -> tuple[float, int]:
    from ops.bench.pocket import PocketRun

    run = PocketRun(
        corpus, config, folder, num_sites=setting.sites, delay_blocks=setting.delay_blocks
    )
    found = run.play()
    return found.loss, found.tokens


def _baseline(setting: Setting, config: RunConfig, corpus: Any, folder: Path) -> tuple[float, int]:
    from sitehub.baseline import Baseline, Plan
    from sitehub.founding import start

    config, model = start(config, corpus)
    wanted = Plan(setting.sequences * SEQUENCE_TOKENS, setting.batch, setting.lr, {})
    one = Baseline(config, model, corpus, wanted, folder)
    one.train(lambda _: True)
    found = one.result(None)
    return found["loss"], found["tokens"]
