"""What is the state of training, whoever holds it, and what is its digest?"""
