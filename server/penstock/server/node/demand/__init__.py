"""What readers want of a node, and what is ready for them: state alone, no processes."""
