"""How do dense features and embeddings become a prediction?"""
