"""Benchmarks: each measures atoll against a named limit or peer in one run."""
