"""``bundle``: one file with models, engines, settings and the program, made here and taken in elsewhere.

Refuses to decide what is in one, and what an import does.
"""
