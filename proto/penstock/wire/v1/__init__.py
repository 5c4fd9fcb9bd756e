"""Version 1 of the wire: `.proto` files, the generated code and its stubs."""
