"""Codecs: what a gradient looks like on the wire. A folder each; `_codec.py` says what one must offer."""
