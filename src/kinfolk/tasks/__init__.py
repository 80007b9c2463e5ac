"""Kinds of tasks, formats of labelled files, and formulations by which networks solve tasks."""
