"""Refusals and their repairs: pure functions of bodies and of the engine's words. Refuses to ask anybody."""
