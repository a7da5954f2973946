"""The verbs around engines: list, choose, install, update, and lend devices to other machines.

Refuses to decide which engine is better: `core` beside this folder does.
"""
