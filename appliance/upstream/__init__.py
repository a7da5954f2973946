"""The only client to model processes and peers: HTTP requests and websockets, one connection for each.

Refuses to retry, follow redirects, or interpret bodies."""
