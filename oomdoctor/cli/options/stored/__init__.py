"""The options of the verbs that work on stored runs."""
