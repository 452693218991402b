"""How do ranks train without waiting for each other? On parameter servers, which Neo replaced."""
