"""Who notices that a job stands still or was killed, and what is said of it?"""
