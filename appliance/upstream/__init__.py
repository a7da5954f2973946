"""The only client to model processes, peers and hubs: HTTP requests and websockets, and files that come over them.

Refuses to interpret bodies. Only what comes as a file (`hub`, `file_transfer`) is asked for again, or elsewhere.
"""
