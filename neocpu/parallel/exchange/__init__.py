"""How do lookups reach their rows, and vectors come home?"""
