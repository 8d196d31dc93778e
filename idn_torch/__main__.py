"""`python -m idn_torch`: the same as the command `idn-torch`."""

from idn_torch.cli import main

if __name__ == "__main__":
    main()
