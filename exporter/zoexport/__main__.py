"""``python -m zoexport`` is the ``zoexport`` command."""

from zoexport.cli.main import main

if __name__ == "__main__":
    main()
