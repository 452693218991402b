"""How do ranks agree on the gradient of dense parameters?"""
