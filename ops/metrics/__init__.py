"""Where a run's numbers go besides its log: files that other tools read."""
