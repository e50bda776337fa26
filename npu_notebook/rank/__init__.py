"""The rank process: one of them per device, its main thread runs the user's cells.

`worker` is the process, `shell` runs a cell, `streams` and `pipes` carry what it
prints, `interrupts` stops it, `groups` forms the process group, `values` moves
variables. Importing this package imports neither torch nor IPython.
"""
