"""Makes air-gap bundles of what is on this machine, and takes them in.

Refuses to fetch anything, and to switch the running program: see `docs/air-gap.md`.
"""
