"""The HTTP edge: turns requests into calls on owners and bytes back into responses.

Refuses to know how a model is started, which one is evicted, or where a file lies."""
