"""What is in a file, and how does it become text or frames?"""
