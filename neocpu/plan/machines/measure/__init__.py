"""What does this machine achieve? The job that `calibration.py` starts, topic by topic."""
