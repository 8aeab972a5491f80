"""What the operator may ask of a run, and in which of its states (R2): one table, for the fold and
for whoever looks before asking."""

from __future__ import annotations

# type of the request: the states in which it holds, and the state that it leads to
REQUESTS: dict[str, tuple[tuple[str, ...], str]] = {
    "run.paused": (("running",), "paused"),
    "run.resumed": (("paused",), "running"),
    "run.stopped": (("running", "paused"), "stopping"),
}


def refusal(request: str, state: str) -> str:
    """Why a request of this type is void in a state; '' where it holds."""
    states, after = REQUESTS[request]
    if state in states:
        return ""
    if state == "finished" or (state == after and len(states) > 1):
        return f"the run is {state} already"
    return f"the run is {state}, not {states[0]}"
