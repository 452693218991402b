"""How do many ranks act as one? They move bytes; sums have an order of their own."""
