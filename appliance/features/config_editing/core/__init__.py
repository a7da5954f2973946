"""A configuration's text: secrets under marks, values spliced, and the part that may be edited over HTTP. Pure.

Refuses to read or write a file.
"""
