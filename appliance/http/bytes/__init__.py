"""The bytes of HTTP/1.1 on client sockets: accepting, parsing, bodies, answers, TLS.

Refuses to know what a request means."""
