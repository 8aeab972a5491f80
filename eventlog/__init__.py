"""The language of atoll: events, their codec, the log they stand in, and its folds into SQLite."""
