"""What does `neocpu data` make besides conversions? Logs: drawn ones, and ones with negatives."""
