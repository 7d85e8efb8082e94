"""What the lines report: failures, their look-alikes, and whether a run went on or began again."""
