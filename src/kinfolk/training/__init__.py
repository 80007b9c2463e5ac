"""The loop, the step, and what they leave on disk."""
