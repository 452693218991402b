"""Which activations stay in memory from the forward pass to the backward pass?"""
