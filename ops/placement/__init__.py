"""Placement: be where the queues let us, as an ordinary user of each centre.

The thinking half is pure: `shapes` (the words), `backfill` (one queue, simulated), `estimate` and
`calibrate` (distributions of the wait), `plan` (what to ask for), `policies` and `study` (what it
is worth). Times are epoch seconds that are passed in; what is unknown is None, never 0.
"""
