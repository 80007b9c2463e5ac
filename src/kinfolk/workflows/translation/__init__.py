"""Translation models: sentence pairs, languages, training and translating."""
