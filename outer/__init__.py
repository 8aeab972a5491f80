"""The outer loop: rounds, pseudo-gradients, merge, versions, and the coordinator."""
