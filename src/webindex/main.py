"""The module that `percola worker webindex.main:observers` loads the observers from."""

from webindex.cli.main import cli, observers

__all__ = ["observers"]

if __name__ == "__main__":
    cli()
