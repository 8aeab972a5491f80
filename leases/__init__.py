"""Blocks, the lease table as a fold of the log, the policies that decide about it, its audit."""
