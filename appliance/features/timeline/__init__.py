"""The timeline on the command line, ``events``; see README.md.

Refuses to note anything: each owner tells what it decides.
"""
