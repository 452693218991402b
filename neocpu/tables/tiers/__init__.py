"""Which memory holds which row? Caches in front of homes, and the moves between them."""
