from tests.support.broker import broker, connection, run_name

__all__ = ["broker", "connection", "run_name"]
