"""The tools of this machine as the kernel knows them: a box of them, their names, and where they may run.

Refuses to touch a file or a process.
"""
