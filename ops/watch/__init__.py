"""The live view: folds a log, says in words what happens and what is waited for, draws it."""
