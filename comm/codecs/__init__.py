"""Codecs: encode a gradient to bytes and decode it. One folder each; `_codec.py` defines the interface."""
