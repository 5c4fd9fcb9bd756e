"""Pictures and sound: where their bytes come from, and what these become."""
