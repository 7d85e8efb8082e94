"""What a log says, from bytes to incidents: messages, look-alikes, figures."""
