"""The configuration explained, and edited over HTTP and on the machine; see README.md.

Refuses to change over HTTP what runs on the machine, and to show a secret there.
"""
