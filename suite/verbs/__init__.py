"""What `suite <verb>` does: a module a verb, each with `main(arguments) -> exit code`, and what they are made of."""
