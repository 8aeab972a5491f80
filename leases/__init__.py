"""Who may train what: blocks, the lease table as a fold of the log, policy, audit."""
