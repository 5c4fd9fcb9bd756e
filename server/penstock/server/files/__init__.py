"""What is known of data files without reading them all: hashes, catalogs, versions."""
