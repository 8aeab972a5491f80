"""The outer loop: deltas, codecs, Nesterov, rounds, versions, the coordinator."""
