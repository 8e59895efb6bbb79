"""The `netcl` command. Stands on every other package; nothing imports it."""
