"""Decisions about engine builds: what a build is, which devices it sees, what proves it, which one is used.

Refuses to look at the machine: engines/ does, and hands in what it saw."""
