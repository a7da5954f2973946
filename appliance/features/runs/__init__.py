"""Runs agents: a task each, with tools, limits, restarts of engines that hang, and results that stay.

Refuses to decide a turn of the model: `core.turns` does.
"""
