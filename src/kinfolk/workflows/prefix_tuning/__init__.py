"""Prefixes that are learned for a frozen decoder."""
