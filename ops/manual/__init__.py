"""Pages and pictures that are made of the code, so that they cannot say something else than it."""
