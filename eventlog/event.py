"""What every event is, and what its fields are made of.

An event is a fact in the past tense. It is frozen, and checked when it is made and when it is
read. `by` says who may write it; the subject it stands on proves who did (R6). A `Token` is
(sequence, event id) of another event of the log: the only way events name each other (R3).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from eventlog.keys import PUBLIC_KEY

MAX_COUNT = 2**62  # every number of an event fits a signed 64-bit integer, with room for a sum
MAX_REASON = 2000  # characters
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Token = tuple[Count, str]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Reason = Annotated[str, Field(min_length=1, max_length=MAX_REASON)]  # for a person (P6)
Blocks = Annotated[tuple[Count, ...], Field(min_length=1, max_length=100_000)]
Subject = Annotated[
    str, Field(pattern=r"^(coordinator|operator|planner|(site|agent)\.[a-z0-9][a-z0-9-]{0,62})$")
]
PublicKey = Annotated[str, Field(pattern=PUBLIC_KEY)]
Codec = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]

OPERATOR, COORDINATOR, SITE, AGENT, PLANNER = (
    "operator",
    "coordinator",
    "site",
    "agent",
    "planner",
)


def _as_read(value: Any) -> Any:
    """Tuples as lists, which is what a reader gets of them."""
    if isinstance(value, dict):
        return {key: _as_read(one) for key, one in value.items()}
    return [_as_read(one) for one in value] if isinstance(value, list | tuple) else value


# content without a schema of its own: JSON's, of which whoever reads a log makes lines and pages
Free = Annotated[dict[str, JsonValue], BeforeValidator(_as_read)]


class Part(BaseModel):
    """A piece of an event: frozen, and deaf to optional fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Event(Part):
    """Base of all events. `type` and `schema_version` name the schema, `by` the sources' kinds."""

    type: ClassVar[str]
    schema_version: ClassVar[int] = 1
    by: ClassVar[frozenset[str]]


def shortened(text: str) -> str:
    """A reason made of parts of any length (names of sites, an operator's words), cut to fit."""
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 2] + " …"
