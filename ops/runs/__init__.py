"""Commands of `atoll run` that are a file each."""
