"""Pages: training runs, evaluations, audits, tokenizers."""
