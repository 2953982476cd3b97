"""Answers that must follow a JSON schema, an expression, a grammar or a list of choices."""
