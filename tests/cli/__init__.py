"""Tests of the commands; a package, because other folders have files of the same names."""
