"""The page of each verb that is neither a survey nor a list, one module each."""
