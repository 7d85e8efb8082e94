"""The devices of a survey, a plan or a run: a card by name, a size, this machine's GPU."""
