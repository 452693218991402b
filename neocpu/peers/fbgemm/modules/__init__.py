"""Which classes of FBGEMM stand here? Training and inference tables over our embedding."""
