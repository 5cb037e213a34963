"""`kvitto migrate`: brings definitions and messages from one AMQP 0-9-1 broker to another. `main.main` calls it.

command.py reads the arguments, brokers.py checks whom they name, plan.py finds out what there is, routes.py which exchanges
are kept, moving.py moves, report.py says what became of it.
"""

from kvitto.cli.migrate.command import add_parser

__all__ = ["add_parser"]
