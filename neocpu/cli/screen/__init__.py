"""What do commands share? Options, targets, progress, and what they print together."""
