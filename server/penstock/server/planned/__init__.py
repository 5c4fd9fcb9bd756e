"""What is known of a job before anything of it is decoded: sizes, plans, and what they say."""
