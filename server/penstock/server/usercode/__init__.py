"""Users' code: found, loaded, told apart by its text, called safely, and its errors as text."""
