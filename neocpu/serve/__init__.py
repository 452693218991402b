"""What is a trained model used for?"""
