"""How is a message filled and emptied? Bucketize, permute, deduplicate, encode."""
