"""Answers without an end: events, logs, resumable streams.

Refuses to hold anything up for a slow reader."""
