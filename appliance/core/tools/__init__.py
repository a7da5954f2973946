"""The decisions of the built-in tools: names, edits, lines, patterns, targets.

Refuses to touch a file or a process.
"""
