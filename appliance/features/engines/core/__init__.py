"""Decisions about engine builds: their devices, their proofs, and the choice among them.

Refuses to look at the machine: engines/ looks, and passes in the results.
"""
