"""Which layers are models made of?"""
