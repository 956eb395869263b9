"""The backend's own all-reduce; only for codecs that are closed under addition."""

SUMMARY = "the backend's own all-reduce"
CITATION = ""
NEEDS = ("closed",)
