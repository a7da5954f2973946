"""The fixtures of the tests of all features."""

from served import client, configured, downloads, file, hub, served

__all__ = ["client", "configured", "downloads", "file", "hub", "served"]
