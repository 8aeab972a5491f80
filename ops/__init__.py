"""The operator's room and composition root: command line, demo, live view, reports."""
