"""Layer, RMS, batch and group norm, softmax."""
