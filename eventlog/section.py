"""What the tables of a run's configuration have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]  # a generation: it can be counted in ticks
Share = Annotated[float, Field(ge=0, le=1)]

FROM_A_LOG = "from a log"  # context of a validation: what a log holds stays valid


class Section(BaseModel):
    """A table of the configuration. Unknown keys are errors: a typo must not train for a week."""

    model_config = ConfigDict(frozen=True, extra="forbid")
