"""What does one rank do with its rows? Look them up and update them, all tables at once."""
