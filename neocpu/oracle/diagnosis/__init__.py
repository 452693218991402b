"""What explains wrong answers? Switches, patterns, and what failed cases have in common."""
