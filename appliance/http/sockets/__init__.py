"""WebSockets of clients: joined to a model or peer, or answered here.

Refuses to look into messages that it passes on."""
