"""The commands of `maxam-admin` that keep the terminal: `top` and `topics watch`."""
