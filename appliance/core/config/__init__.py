"""The configuration file: text in, frozen values out, every mistake named with its place.

Refuses to read files, environment or clock: text and environment are arguments.
"""
