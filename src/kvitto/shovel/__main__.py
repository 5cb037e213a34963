"""Runs the process of the shovels."""

from kvitto.shovel.process import main

if __name__ == "__main__":
    main()
