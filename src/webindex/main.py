"""The name by which `percola worker webindex.main:observers` finds the observers."""

from webindex.cli.main import cli, observers

__all__ = ["observers"]

if __name__ == "__main__":
    cli()
