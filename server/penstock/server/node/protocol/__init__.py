"""What the server process and its workers say to each other, and the memory they share."""
