"""Which mistakes and quirks have a name? Their texts, by what they are about."""
