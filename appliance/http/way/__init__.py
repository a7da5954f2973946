"""The way of a request for a model: let in, resolved, leased, asked, relayed.

Refuses to answer questions about the program; those are `control`."""
