"""Commands `suite <verb>`: one module for each verb, with `main(arguments) -> exit code`, and their helpers."""
