"""The fixtures of tests over HTTP."""

from served import client, configured, downloads, file, hub, served

__all__ = ["client", "configured", "downloads", "file", "hub", "served"]
