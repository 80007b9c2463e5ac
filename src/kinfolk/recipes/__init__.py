"""Whole runs: one file of settings a member, and what turns settings into a run."""
