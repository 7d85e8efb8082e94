"""What a rung needs by formula: weights, states, activations, ZeRO's partitions."""
