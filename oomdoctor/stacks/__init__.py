"""What other training programs call the settings of a rung, to read their files and to write them.

Nothing here opens a file or imports a training library: `system/training_files.py` reads files, and
`worker/parsing/` asks the libraries themselves.
"""
