"""Commands `suite <verb>`: one module for each verb, with `main(arguments) -> exit code`.

`main` takes what was typed after the verb, and returns one of the exit codes that the module's help text states, or 0
if it states none. What was typed wrongly, or cannot be done here, is a `UserError`; `suite.cli` prints it and ends
with 2.
"""
