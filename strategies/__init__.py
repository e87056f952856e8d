"""Floor 1: algorithms and task definitions, shared by clients, server and simulation."""
