"""What a set of errors or an order comes to."""
