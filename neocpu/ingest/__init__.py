"""How does a click log become batches?"""
