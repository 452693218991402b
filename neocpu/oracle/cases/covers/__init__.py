"""Which options break each other? Pairwise covers."""
