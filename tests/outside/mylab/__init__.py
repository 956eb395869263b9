"""Members kept outside the tree, as a user's would be: they enter by `module: mylab.<name>`."""
