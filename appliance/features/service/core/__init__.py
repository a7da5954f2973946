"""The texts and rules of systemd, launchd and the service manager of Windows.

Refuses to ask any of them.
"""
