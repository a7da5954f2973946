"""The fixtures of the tests of all features."""

from served import downloads, hub, served

__all__ = ["downloads", "hub", "served"]
