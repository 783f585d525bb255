"""How work is handed to Ray."""
