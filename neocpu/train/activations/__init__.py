"""How does a step keep what it needs on its way back within a budget of memory?"""
