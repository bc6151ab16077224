"""What a training left of itself: parameters, inputs, outputs, metrics."""
