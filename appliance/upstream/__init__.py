"""The only client to model processes and peers: HTTP requests and websockets, one connection for each.

Refuses to pool, retry, follow redirects, use a proxy, or interpret bodies."""
