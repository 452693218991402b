"""What is an embedding table, and where do its rows live?"""
