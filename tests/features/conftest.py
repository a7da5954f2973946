"""The fixtures of the tests of all features."""

from served import client, configured, downloads, file, hub, served
from serving import serve

__all__ = ["client", "configured", "downloads", "file", "hub", "serve", "served"]
