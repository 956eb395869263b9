"""Search for the fastest plan: components, blocks, the costs of every stage, and the best stages."""
