"""One module for each verb: it turns its options into a request, and writes to the streams."""
