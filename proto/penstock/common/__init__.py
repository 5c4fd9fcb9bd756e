"""What both halves need and neither sends: checks of what people give, terminals, the machine."""
