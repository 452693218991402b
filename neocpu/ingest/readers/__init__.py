"""How do processes of their own read for the trainers?"""
