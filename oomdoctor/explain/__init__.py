"""Reading out-of-memory messages: one table of dialects and the parser over it."""
