"""How a family solves a kind of task."""
