"""Knowledge about requests: records, metrics, captures, requests under way, the program's log, targets.

Refuses to know how a request arrived."""
