"""`atoll demo`: a whole run on one machine, with a crash and a late join, audited at its end."""
