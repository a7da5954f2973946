"""The command line: turns argv into calls on owners, and facts into text or JSON.

Refuses to decide anything: no scheduling, no process handling, no HTTP serving.
"""
