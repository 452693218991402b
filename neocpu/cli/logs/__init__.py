"""What does `neocpu data` make besides conversions? Drawn logs, negatives, and room for copies."""
