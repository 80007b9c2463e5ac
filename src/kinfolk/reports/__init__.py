"""HTML pages of runs, evaluations, audits and tokenizers; they take plain values."""
