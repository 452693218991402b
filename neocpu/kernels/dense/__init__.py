"""What does the dense half of a model compute? Products, interactions, attention, loss."""
