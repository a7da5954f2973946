"""One task per model process, from spawn to reap; carries out what core.scheduling decides.

Refuses to decide which model runs, and to know HTTP requests, configuration files or the network."""
