"""The flat command line: `python main.py --env_name CartPole-v1 --use_double …`; see `python main.py --help`."""

import sys

from drl.cli.flat import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
