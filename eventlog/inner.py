"""The table [inner] of a run's configuration: what a site does between two outer steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from eventlog.events import Positive
from eventlog.section import PositiveFloat, Section, Share


class Inner(Section):
    """What a site does between two outer steps (DiLoCo's inner loop); docs/training.md."""

    steps: Positive = 100  # H: inner optimizer steps per round of the fastest site
    batch_sequences: Positive = 16  # sequences per inner step, all ranks of a site together
    accumulate: Positive = 1  # passes that a step's sequences take one after the other

    # "muon": Muon for the matrices of layers, AdamW for the rest, with one decay for both
    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: PositiveFloat = 1e-3  # peak learning rate
    warmup: Share = 0.02  # share of the run's progress over which the rate rises from 0
    # after that: "cosine" falls to the end; "wsd" (warm-up, stable, decay) stays, and falls by a
    # line over the last `decay`; "constant" stays
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    decay: Share = 0.2  # of "wsd": share of the run's progress at its end
    final_lr: Share = 0.1  # share of the peak that "cosine" and "wsd" end at
    # decoupled from the gradient, of matrices alone
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9  # of AdamW's mean of gradients
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95  # and of their squares
    eps: PositiveFloat = 1e-8  # AdamW's
    muon_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95  # of "muon" only
    adamw_share: PositiveFloat = 1.0  # of "muon" only: AdamW's rate, as a share of lr
    clip_norm: PositiveFloat = 1.0  # of the gradient, L2
    # the inner optimizer's state when a version is folded in
    on_version: Literal["keep", "reset"] = "keep"

    # of forward and backward; parameters and sums are fp32. "auto": bf16 on an accelerator
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    activation_checkpointing: bool = False  # recompute activations: less memory, a third slower
    compile: bool = False  # torch.compile: a first step of minutes (limits.compile_s), then faster

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Inner:
        if self.batch_sequences % self.accumulate:
            raise ValueError(
                f"accumulate = {self.accumulate} does not divide batch_sequences = "
                f"{self.batch_sequences}"
            )
        if self.schedule == "constant" and self._is_given("final_lr") and self.final_lr != 1:
            raise ValueError(
                f'final_lr = {self.final_lr:g} with schedule = "constant", which never falls; '
                'leave it out, or give schedule = "wsd" or "cosine"'
            )
        if self.schedule != "wsd" and self._is_given("decay"):
            raise ValueError(
                f'decay = {self.decay:g} with schedule = "{self.schedule}": only "wsd" has one; '
                "leave it out"
            )
        if self.schedule == "wsd" and self.warmup + self.decay > 1:
            raise ValueError(
                f"warmup = {self.warmup:g} and decay = {self.decay:g} are more than the whole run"
            )
        for name in ("muon_momentum", "adamw_share"):
            if self.optimizer != "muon" and self._is_given(name):
                raise ValueError(
                    f'{name} = {getattr(self, name)} with optimizer = "{self.optimizer}"; '
                    'leave it out, or give optimizer = "muon"'
                )
        return self

    def _is_given(self, name: str) -> bool:
        """Whether a field is other than where it is left out."""
        return bool(getattr(self, name) != type(self).model_fields[name].default)
