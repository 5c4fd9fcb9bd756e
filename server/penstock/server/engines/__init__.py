"""Engines that place, restart and end node processes: what penstock runs within them."""
