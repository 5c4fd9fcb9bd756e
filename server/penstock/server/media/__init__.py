"""Pictures, sound and video: where their bytes come from, and what these become."""
