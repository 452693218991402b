"""Which smaller model is as good? A supernet, and decisions that learn."""
