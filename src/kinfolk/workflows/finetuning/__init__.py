"""Fine-tuning on labelled rows: one run, several seeds, stages, suites of datasets."""
