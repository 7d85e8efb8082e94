"""What only a plan has: a row a card, what was searched, a rung taken apart."""
