"""One comparison of families: its plan, its jobs, the processes that run them, its results."""
