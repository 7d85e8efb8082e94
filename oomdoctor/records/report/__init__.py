"""What a reader gets: a report and its parts, one module a command. JSON is the document."""
