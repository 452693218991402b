"""Which features form a tower, and which node holds it?"""
