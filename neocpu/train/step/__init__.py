"""What happens in one training step?"""
