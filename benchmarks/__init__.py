"""Measure what a user waits for, each beside a reference in the same run.

``python -m benchmarks`` runs all of them; ``docs/measurements.md`` keeps the figures.
"""
