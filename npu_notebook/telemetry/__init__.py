"""What hosts and devices are doing, read from outside the ranks.

Sources run in the agent or the controller, never in a rank, and report ``None`` for
what they do not know.
"""
