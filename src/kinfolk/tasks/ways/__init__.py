"""Ways to solve a task: one file each."""
