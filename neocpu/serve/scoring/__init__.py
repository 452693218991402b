"""What does a model predict, in this process or in a file?"""
