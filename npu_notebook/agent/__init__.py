"""The agent: one process per host that starts, watches and ends that host's ranks.

`agent` is its loop, `template` the process its ranks are forked from, `ranks` knows
which rank is which process, `ending` ends them with everything they started.
"""
