"""The activity log for its readers; see README.md.

Refuses to write it: the kernel's recorder does.
"""
