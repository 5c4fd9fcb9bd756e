"""Who may do what on a node, and the certificate that it shows."""
