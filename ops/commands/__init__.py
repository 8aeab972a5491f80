"""One module per command; each imports what is heavy only inside the command that needs it."""
