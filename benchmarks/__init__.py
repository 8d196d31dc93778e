import idn_torch  # noqa: F401  # before torch: see idn_torch.process
