"""What is wrong with this machine, this site, this broker, and what to do about it."""
