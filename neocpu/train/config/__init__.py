"""What does a run need to know? One TOML file, checked whole before anything starts."""
