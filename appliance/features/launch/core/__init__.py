"""The decisions of the feature, pure: what each client needs, and how a settings file is edited.

Refuses I/O.
"""
