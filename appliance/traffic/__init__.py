"""What is known about requests: records, metrics, captures, requests under way, the program's log, who answers.

Refuses to know how a request arrived."""
