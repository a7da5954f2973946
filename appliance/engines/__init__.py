"""Which llama.cpp builds exist on this machine, and the one that will be used.

Refuses to run models: it answers with a command, fleet/ runs it."""
