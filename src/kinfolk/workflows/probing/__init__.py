"""Probes: what linear and small classifiers read from frozen layers."""
