"""What is said of a table before it exists? Its shape, its rule, its row map."""
