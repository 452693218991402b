"""What happens to rows of embedding tables? Lookup, merge, update."""
