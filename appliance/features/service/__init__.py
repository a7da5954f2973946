"""The program as a service of the operating system: installs it with systemd, launchd or Windows, and steers it there.

Refuses to hold program logic: a service runs the same composition root as serve. See README.md.
"""
