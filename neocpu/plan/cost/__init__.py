"""What does a plan cost? Bytes, calls and seconds, phase by phase."""
