"""One run of a Loader: what it was given, which rank it is, of which attempt, and how it begins."""
