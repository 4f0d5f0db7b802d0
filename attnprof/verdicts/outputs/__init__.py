"""A comparison -> what CI shows of it: JUnit, annotations, a Markdown comment, a step summary."""
