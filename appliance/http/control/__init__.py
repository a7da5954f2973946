"""The program's own routes: models, runs, engines, logs, the page.

Refuses to decide; each route is a call on an owner."""
