"""Slurm, versions 17 to 26, as an ordinary user sees it: commands, and what they print, read.

Reading is pure: text in, values out, None for what is unknown. Only `client` runs anything.
"""
