"""What is right, and how far off may it be, where no rows are looked up?"""
