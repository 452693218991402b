"""Why is a plan as it is, what does it look like, and what helps where none fits?"""
