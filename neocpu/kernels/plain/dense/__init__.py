"""Matrix products and the dot interaction, as a textbook writes them."""
