import argparse


class FlexibleArgumentParser(argparse.ArgumentParser):
    """Takes settings that it has no name for."""

    def parse_args(self, args=None, namespace=None):
        return self.parse_known_args(args, namespace)[0]
