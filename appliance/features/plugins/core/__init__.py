"""The decisions of plugins: the commands at the head of a text, and the values of a plugin.

Refuses to touch a file, or to run a plugin.
"""
