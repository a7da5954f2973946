"""Air-gap bundles: one file with models, engines, settings and the program, made here and taken in elsewhere.

Refuses to fetch anything, and to switch the running program. See README.md.
"""
