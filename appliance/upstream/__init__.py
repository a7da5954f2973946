"""The only HTTP client to model processes and peers: one connection, one request.

Refuses to pool, retry, follow redirects or interpret bodies."""
