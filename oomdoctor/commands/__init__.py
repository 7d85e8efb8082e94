"""The use cases, a word for each command: they carry out a request and print nothing."""
