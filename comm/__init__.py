"""Communication: codecs, reductions built from codecs, and transports that move the encoded bytes."""
