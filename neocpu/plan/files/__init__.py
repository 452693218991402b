"""How is a plan written down, and read again?"""
