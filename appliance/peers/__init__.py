"""Knows the other servers: which are well, which models they have and have loaded, and whom to ask first.

Refuses to send a client's request itself, to start models anywhere, and to pass a client's own key on."""
