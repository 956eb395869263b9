"""Tasks: one folder each, with its data, model and targets. Names that begin with `_` are libraries."""
