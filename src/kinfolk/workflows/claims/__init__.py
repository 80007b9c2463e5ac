"""Well-known claims about families, tested by comparisons."""
