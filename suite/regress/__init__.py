"""Answers whether one side, such as a commit or a version of a framework, makes a step slower than another."""
