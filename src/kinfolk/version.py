"""The version of the package, which its files record."""

__version__ = "0.1.0"
