"""The contents of an air-gap bundle: its manifest, its signature, and what an import has to do.

Refuses to read or write a file.
"""
