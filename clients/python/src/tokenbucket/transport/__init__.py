"""How a call reaches the server, by the user's driver."""
