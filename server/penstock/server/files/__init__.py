"""How ranges of data files are read, and what is known of files without reading them all."""
