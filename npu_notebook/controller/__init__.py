"""The controller process: one per cluster, it outlives the notebook.

`lifecycle` and what it is made of decide and are pure; `controller` does. Neither
torch nor IPython is imported here.
"""
