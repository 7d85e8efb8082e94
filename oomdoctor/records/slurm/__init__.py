"""What is known of many jobs of a cluster."""
